# SPDX-License-Identifier: Apache-2.0
"""Credentials from docker's configuration, bearer tokens, and where they are sent."""

from __future__ import annotations

import base64
import json
import logging
import stat
from pathlib import Path

import pytest

from tests.store.registries.artifacts import contents
from tests.store.registries.conftest import QUICK
from tests.store.registries.double import Fault, Registry, running_registry
from trtspec.core.errors import TrtspecError
from trtspec.store.registries import credentials
from trtspec.store.registries.credentials import Credentials, find_credentials
from trtspec.store.registries.http_client import RegistryError, require_safe, retry_after_s, shown, url_origin
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact

USER, PASSWORD = "robot", "pa:ss-hunter2"


def auth(user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write_config(home: Path, config: object) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker" / "config.json").write_text(json.dumps(config))


def write_helper(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_registry_with_credentials(
    own_home: Path, built: Path, tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running_registry(user=USER, password=PASSWORD, scheme=scheme) as registry:
        address = f"oci://{registry.host}/team/tiny:v1"
        with pytest.raises(RegistryError, match="requires credentials") as raised:
            push_artifact(built, address, patience=QUICK)
        assert raised.value.hint == f"docker login {registry.host}"
        write_config(own_home, {"auths": {registry.host: auth(password="wrong")}})
        with pytest.raises(RegistryError, match="rejects these credentials") as raised:
            push_artifact(built, address, patience=QUICK)
        assert "wrong" not in str(raised.value)
        write_config(own_home, {"auths": {registry.host: auth()}})
        push_artifact(built, address, patience=QUICK)
        pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
        assert contents(tmp_path / "out") == contents(built)
    assert PASSWORD not in caplog.text
    assert auth()["auth"] not in caplog.text
    assert registry.token not in caplog.text


def test_expired_token_is_renewed_during_a_push(own_home: Path, built: Path, tmp_path: Path) -> None:
    with running_registry(user=USER, password=PASSWORD, scheme="Bearer") as registry:
        write_config(own_home, {"auths": {registry.host: auth()}})
        address = f"oci://{registry.host}/team/tiny:v1"

        def expire(what: str, done: int, total: int) -> None:
            registry.token = f"later-{done // (2 << 20)}"

        push_artifact(built, address, patience=QUICK, on_progress=expire)
        assert len(registry.requests("GET /token")) > 1
        assert all("repository%3Ateam%2Ftiny%3Apull%2Cpush" in each.path for each in registry.requests("GET /token"))


def test_identity_token_is_exchanged(own_home: Path, built: Path) -> None:
    with running_registry(user=USER, password=PASSWORD, scheme="Bearer") as registry:
        write_config(own_home, {"auths": {registry.host: {"identitytoken": PASSWORD}}})
        push_artifact(built, f"oci://{registry.host}/team/tiny:v1", patience=QUICK)
        assert registry.requests("POST /token")


def test_redirect_to_another_host_loses_the_authorization(own_home: Path, built: Path, tmp_path: Path) -> None:
    with running_registry(user=USER, password=PASSWORD) as registry, running_registry() as other:
        write_config(own_home, {"auths": {registry.host: auth(), other.host: auth()}})
        address = f"oci://{registry.host}/team/tiny:v1"
        push_artifact(built, address, patience=QUICK)
        other.blobs, registry.redirect = registry.blobs, other.url
        pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
        assert other.seen
        assert not [each for each in other.seen if "authorization" in each.headers]
        assert contents(tmp_path / "out") == contents(built)


def test_redirect_loop_ends(registry: Registry, built: Path, tmp_path: Path) -> None:
    push_artifact(built, f"oci://{registry.host}/team/tiny:v1", patience=QUICK)
    registry.redirect = registry.url
    with pytest.raises(RegistryError, match="too many redirects"):
        pull_artifact(f"oci://{registry.host}/team/tiny:v1", lambda *_: tmp_path / "out", patience=QUICK)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "http://169.254.169.254/",
        "https://",
        "ftp://x/",
    ],
)
def test_remote_registry_may_refer_only_to_tls(url: str) -> None:
    with pytest.raises(RegistryError, match="without TLS"):
        require_safe(url, "https://registry.example.com")
    require_safe("https://storage.example.com/x", "https://registry.example.com")
    require_safe("http://127.0.0.1:1/x", "http://localhost:5000")


MALFORMED = ["http://[", "http://127.0.0.1:99999/x", "http://127.0.0.1:y/"]


@pytest.mark.parametrize("url", MALFORMED)
def test_malformed_addresses_of_a_registry_are_refused(
    registry: Registry, built: Path, tmp_path: Path, url: str
) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    registry.faults = [Fault("POST .*/uploads/", status=202, headers={"Location": url})]
    with pytest.raises(RegistryError, match="it refers to"):
        push_artifact(built, address, patience=QUICK)
    registry.faults = []
    push_artifact(built, address, patience=QUICK)
    for pattern, status, header in (("GET .*/blobs/", 307, "Location"), ("GET", 401, "WWW-Authenticate")):
        value = f'Bearer realm="{url}"' if status == 401 else url
        registry.faults = [Fault(pattern, status=status, headers={header: value})]
        with pytest.raises(RegistryError, match="it refers to"):
            pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)


def test_redirect_to_a_path_with_other_characters_is_quoted(registry: Registry, built: Path, tmp_path: Path) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(built, address, patience=QUICK)
    registry.faults = [Fault("GET .*/manifests/v1", status=307, headers={"Location": "/caf\xe9 1"})]
    with pytest.raises(RegistryError, match="has no v1"):
        pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
    assert registry.requests(r"GET /caf%E9%201$")


def test_rejection_whose_body_never_arrives_is_an_error(registry: Registry, built: Path, tmp_path: Path) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(built, address, patience=QUICK)
    registry.faults = [Fault("GET .*/blobs/", times=99, status=409, stall=1, extra=b"xx")]
    with pytest.raises(RegistryError, match="HTTP status 409"):
        pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)


def test_token_server_without_tls_is_refused(built: Path) -> None:
    with running_registry() as registry:
        challenge = 'Bearer realm="http://example.com/token",service="x"'
        registry.faults.append(Fault(".*", times=100, status=401, headers={"WWW-Authenticate": challenge}))
        with pytest.raises(RegistryError, match="without TLS"):
            push_artifact(built, f"oci://{registry.host}/team/tiny:v1", patience=QUICK)


def test_credentials_of_another_host_are_not_used(own_home: Path) -> None:
    write_config(own_home, {"auths": {"registry.example.com": auth()}})
    assert find_credentials("registry.example.com") == Credentials(USER, PASSWORD)
    for host in ("example.com", "registry.example.com:5000", "registry.example.com.evil.org"):
        assert find_credentials(host) is None


def test_sources_of_credentials(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(own_home, {"auths": {"https://index.docker.io/v1/": auth("hub"), "https://a.example/": auth("a")}})
    assert find_credentials("docker.io") == Credentials("hub", PASSWORD)
    assert find_credentials("a.example") == Credentials("a", PASSWORD)
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {"a.example": auth("inline")}}))
    assert find_credentials("a.example") == Credentials("inline", PASSWORD)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"b.example": auth("podman")}}))
    assert find_credentials("b.example") == Credentials("podman", PASSWORD)
    assert find_credentials("c.example") is None
    write_config(own_home, {"auths": {"http://c.example/v1/": auth("old"), "d.example/team": auth()}})
    assert find_credentials("c.example") == Credentials("old", PASSWORD)
    assert find_credentials("d.example") is None


def test_helper_gets_the_host_on_its_standard_input(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'read host; echo "$@" "$host" > {tmp_path}/args; printf \'{{"Username":"u","Secret":"s"}}\''
    write_helper(tmp_path, "test", script, monkeypatch)
    write_config(own_home, {"credHelpers": {"a.example": "test"}, "auths": {"a.example": {}}})
    assert find_credentials("a.example") == Credentials("u", "s")
    assert (tmp_path / "args").read_text() == "get a.example\n"
    assert find_credentials("b.example") is None
    write_config(own_home, {"credsStore": "test"})
    assert find_credentials("b.example") == Credentials("u", "s")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo secret-x >&2; exit 3", "failed with exit status 3"),
        ("echo nonsense-secret-x", "not a JSON object"),
        ("echo '{\"Username\": 1}'", "returned no Username and Secret"),
        ("sleep 60", "did not reply within"),
    ],
)
def test_broken_helper_is_named_without_its_output(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, complaint: str
) -> None:
    monkeypatch.setattr(credentials, "HELPER_TIMEOUT_S", 0.5)
    write_helper(tmp_path, "test", f"exec {script}" if script.startswith("sleep") else script, monkeypatch)
    write_config(own_home, {"credHelpers": {"a.example": "test"}})
    with pytest.raises(TrtspecError, match=complaint) as raised:
        find_credentials("a.example")
    assert "secret-x" not in str(raised.value)
    assert "| docker-credential-test get" in str(raised.value)


def test_program_that_is_no_helper_is_named(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_helper(tmp_path, "test", "", monkeypatch).write_bytes(b"\x7fELF")
    write_config(own_home, {"credHelpers": {"a.example": "test"}})
    with pytest.raises(TrtspecError, match="docker-credential-test cannot be started: Exec format error"):
        find_credentials("a.example")


def test_helper_without_credentials_means_anonymous(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_helper(tmp_path, "test", "echo credentials not found in native keychain; exit 1", monkeypatch)
    write_config(own_home, {"credsStore": "test"})
    assert find_credentials("a.example") is None
    write_config(own_home, {"credHelpers": {"a.example": "missing-helper"}})
    with pytest.raises(TrtspecError, match="docker-credential-missing-helper is not installed"):
        find_credentials("a.example")
    write_config(own_home, {"credHelpers": {"a.example": "../../bin/sh"}})
    with pytest.raises(TrtspecError, match="malformed"):
        find_credentials("a.example")


def test_malformed_configuration_is_an_error_without_its_content(own_home: Path) -> None:
    (own_home / ".docker").mkdir()
    (own_home / ".docker" / "config.json").write_text('{"auths": secret-x')
    with pytest.raises(TrtspecError, match="not a JSON object") as raised:
        find_credentials("a.example")
    assert "secret-x" not in str(raised.value)


def test_secrets_are_not_in_representations() -> None:
    assert PASSWORD not in repr(Credentials(USER, PASSWORD, PASSWORD))


def test_addresses_are_shown_without_users_and_queries() -> None:
    assert shown("https://user:secret@host.example:8443/v2/x?sig=secret#f") == "https://host.example:8443/v2/x"
    assert url_origin("https://HOST.example:443/x") == "https://host.example"
    assert url_origin("http://[::1]:5000/x") == "http://[::1]:5000"


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7
    assert retry_after_s({"retry-after": "Fri, 01 Jan 2021 00:00:00 GMT"}) == 0
    assert retry_after_s({"retry-after": "soon"}) == retry_after_s({}) == 0
    assert QUICK.pause_s(0, 3600) == QUICK.longest_pause_s
