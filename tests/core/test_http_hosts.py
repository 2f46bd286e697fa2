# SPDX-License-Identifier: Apache-2.0
"""Accepted Host and Origin headers, on loopback and on other addresses."""

from __future__ import annotations

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.core.http_hosts import allowed_hosts, host_rules, is_loopback


def status(bind: str, host: str | list[str], *origins: str, allowed: tuple[str, ...] = ()) -> int:
    hosts = [host] if isinstance(host, str) else host
    refusal = host_rules(bind, allowed).refusal(hosts, origins)
    return refusal.status if refusal else 200


@pytest.mark.parametrize("host", ["localhost", "LocalHost:9000", "127.0.0.1:9000", "127.0.0.1", "[::1]:9000", "[::1]"])
@pytest.mark.parametrize("bind", ["127.0.0.1", "localhost", "::1"])
def test_loopback_accepts_its_own_names(bind: str, host: str) -> None:
    assert status(bind, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost.",
        "evil.localhost",
        "10.0.0.5:9000",
        "0.0.0.0:9000",
        "[::]:9000",
        "2130706433",
        "127.1",
        "[::ffff:127.0.0.1]",
    ],
)
def test_loopback_rejects_other_names_as_misdirected(host: str) -> None:
    assert status("127.0.0.1", host) == 421
    assert status("127.0.0.1", host, f"http://{host}") == 421


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        "localhost:",
        "localhost:x",
        "localhost:123456",
        "a@localhost",
        "localhost/",
        "local host",
        "[localhost]",
    ],
)
def test_malformed_host_is_a_bad_request(host: str) -> None:
    assert status("127.0.0.1", host) == status("0.0.0.0", host) == 400


def test_exactly_one_host_header_is_required() -> None:
    assert status("127.0.0.1", []) == status("127.0.0.1", ["localhost", "localhost"]) == 400


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("localhost:9000", "http://localhost:9000", 200),
        ("localhost:9000", "HTTP://LOCALHOST:9000", 200),
        ("localhost", "http://localhost", 200),
        ("localhost:80", "http://localhost", 200),
        ("localhost", "https://localhost:443", 200),
        ("localhost:9000", "http://localhost:3000", 403),
        ("localhost:9000", "http://127.0.0.1:9000", 403),
        ("localhost:9000", "http://evil.example", 403),
        ("localhost:9000", "http://evil.example:9000", 403),
        ("localhost:9000", "null", 403),
        ("localhost:9000", "", 403),
        ("localhost:9000", "file://", 403),
        ("localhost:9000", "chrome-extension://localhost:9000", 403),
        ("localhost:9000", "http://a@localhost:9000", 403),
    ],
)
def test_origin_must_match_the_host(host: str, origin: str, expected: int) -> None:
    assert status("127.0.0.1", host, origin) == expected
    assert status("0.0.0.0", host, origin) == expected


def test_each_of_several_origins_is_checked() -> None:
    assert status("127.0.0.1", "localhost", "http://localhost", "http://evil.example") == 403


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.5", "gpu-1.internal"])
def test_server_outside_loopback_accepts_addresses_and_service_names(bind: str) -> None:
    for host in ("10.0.0.5:9000", "[fd00::5]:9000", "quickstart.default.svc.cluster.local", "localhost:9000"):
        assert status(bind, host) == 200


def test_allowed_hosts_restrict_names_outside_loopback() -> None:
    allowed = ("API.example.com",)
    for host in ("api.example.com", "api.example.com:9000", "10.0.0.5:9000", "localhost"):
        assert status("0.0.0.0", host, allowed=allowed) == 200
    assert status("0.0.0.0", "evil.example", "http://evil.example", allowed=allowed) == 421


def test_allowed_hosts_are_accepted_on_loopback_behind_a_proxy() -> None:
    allowed = ("api.example.com",)
    assert status("127.0.0.1", "api.example.com", "https://api.example.com", allowed=allowed) == 200
    assert status("127.0.0.1", "127.0.0.1:9000", "https://api.example.com", allowed=allowed) == 200
    assert status("127.0.0.1", "127.0.0.1:9000", "https://evil.example", allowed=allowed) == 403
    assert status("127.0.0.1", "10.0.0.5", allowed=allowed) == 421


def test_bind_address_is_accepted_as_host() -> None:
    assert status("127.0.0.2", "127.0.0.2:9000") == 200
    assert status("gpu-1.internal", "gpu-1.internal", allowed=("other",)) == 200


def test_allowed_hosts_come_from_the_environment() -> None:
    assert allowed_hosts({}) == ()
    assert allowed_hosts({"TRTSPEC_ALLOWED_HOSTS": " a.example, [::5] ,"}) == ("a.example", "[::5]")
    for wrong in ("a.example:80", "http://a.example", "*"):
        with pytest.raises(TrtspecError, match="is not a host"):
            allowed_hosts({"TRTSPEC_ALLOWED_HOSTS": wrong})


def test_loopback_is_detected_by_address() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.5", "gpu-1", "")))


def test_rejection_message_names_the_host_and_the_setting_that_allows_it() -> None:
    refusal = host_rules("127.0.0.1").refusal(["evil.example:9000"], [])
    assert refusal is not None
    assert "evil.example" in refusal.message
    assert "TRTSPEC_ALLOWED_HOSTS=evil.example" in refusal.message
