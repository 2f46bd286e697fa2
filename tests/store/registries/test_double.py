# SPDX-License-Identifier: Apache-2.0
"""Push and pull against a registry that fails: everything is retried or refused, and nothing wrong is published."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.store.registries.artifacts import DRAFT, SMALL, TARGET, contents, make_artifact, write_artifact
from tests.store.registries.conftest import QUICK
from tests.store.registries.double import Fault, Registry, running_registry
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.registries import upload
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.locations import oci
from trtspec.store.registries.pull import PullResult, pull_artifact
from trtspec.store.registries.push import PushResult, push_artifact

CHUNK = 1 << 20


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the files of these tests in several chunks."""
    monkeypatch.setattr(oci, "CHUNK_BYTES", CHUNK)


def push(registry: Registry, root: Path, tag: str = "v1", name: str = "team/tiny") -> PushResult:
    return push_artifact(root, f"oci://{registry.host}/{name}:{tag}", patience=QUICK)


def pull(registry: Registry, out: Path, tag: str = "v1", name: str = "team/tiny") -> PullResult:
    return pull_artifact(f"oci://{registry.host}/{name}:{tag}", lambda *_: out, patience=QUICK)


def forget(tmp_path: Path) -> None:
    """Forget what this machine has pushed."""
    (tmp_path / "cache" / "blobs.json").unlink(missing_ok=True)


def test_pull_restores_what_was_pushed(registry: Registry, built: Path, tmp_path: Path) -> None:
    pushed = push(registry, built)
    pulled = pull(registry, tmp_path / "out")
    assert contents(pulled.artifact) == contents(built)
    assert (pulled.digest, pulled.manifest, pulled.status) == (pushed.digest, pushed.manifest, "published")
    assert pulled.fetched_bytes == pushed.sent_bytes == pushed.total_bytes
    assert not [*tmp_path.glob(".out.partial")]


def test_second_push_sends_nothing_and_second_pull_fetches_nothing(
    registry: Registry, built: Path, tmp_path: Path
) -> None:
    push(registry, built)
    pull(registry, tmp_path / "out")
    received, sent = registry.received, registry.sent
    assert push(registry, built).sent_bytes == 0
    assert registry.received - received < 10_000
    again = pull(registry, tmp_path / "out")
    assert (again.status, again.fetched_bytes) == ("unchanged", 0)
    assert registry.sent - sent < 20_000


def test_new_draft_beside_an_old_target_sends_and_fetches_only_the_draft(
    registry: Registry, built: Path, tmp_path: Path
) -> None:
    push(registry, built)
    pull(registry, tmp_path / "out")
    other = make_artifact(tmp_path / "other", draft_seed=1)
    for forgets in (False, True):  # also from a machine that has pushed nothing before
        if forgets:
            forget(tmp_path)
        assert push(registry, other, f"v2-{forgets}").sent_bytes == (0 if forgets else 2 << 20)
    pulled = pull(registry, tmp_path / "out", "v2-True")
    assert pulled.fetched_bytes == 2 << 20
    assert contents(pulled.artifact) == contents(other)


def test_target_is_mounted_from_another_repository(registry: Registry, built: Path) -> None:
    push(registry, built)
    assert push(registry, built, name="team/other").sent_bytes <= sum(map(len, SMALL.values()))
    assert registry.requests("POST .*mount=")


def test_pulled_target_is_hashed_and_then_mounted_from_its_repository(
    registry: Registry, built: Path, tmp_path: Path
) -> None:
    """A pull verifies BLAKE3, so a push computes the SHA-256 itself: it never uses one that a registry claims."""
    push(registry, built)
    forget(tmp_path)
    pulled = pull(registry, tmp_path / "out")
    assert '""' in (tmp_path / "cache" / "blobs.json").read_text()
    assert push(registry, pulled.artifact, name="team/other").sent_bytes <= sum(map(len, SMALL.values()))
    assert registry.requests("POST .*mount=")
    pull(registry, tmp_path / "again", name="team/other")
    assert hashlib.sha256((built / TARGET).read_bytes()).hexdigest() in (tmp_path / "cache" / "blobs.json").read_text()


def test_file_in_the_store_is_not_fetched(registry: Registry, built: Path, tmp_path: Path) -> None:
    from trtspec.core.paths import store_dir
    from trtspec.store.step import Inputs, Step, StepProgress
    from trtspec.store.store import Store

    push(registry, built)
    key = "a" * 64

    @dataclass(frozen=True)
    class Fill(Step):
        name = "fill"
        key = "a" * 64

        def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
            out.mkdir(exist_ok=True)
            (out / "rank0.safetensors").write_bytes((built / TARGET).read_bytes())

    store = Store(store_dir())
    store.obtain(Fill())
    pulled = pull(registry, tmp_path / "out")
    assert pulled.fetched_bytes == pulled.total_bytes - (5 << 20)
    stored = store.get(key).entry
    assert stored is not None
    assert (pulled.artifact / TARGET).samefile(stored.files_dir / "rank0.safetensors")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PATCH", status=500),
        Fault("PATCH", times=3, status=429, headers={"Retry-After": "0"}),
        Fault("PATCH", cut=300_000),
        Fault("PATCH", cut=0),
        Fault("PATCH", times=2, status=404),
        Fault("POST", times=2, status=503),
        Fault("HEAD", times=2, status=502),
        Fault(r"PUT .*uploads", status=500),
        Fault(r"PUT .*manifests", times=2, status=500),
    ],
    ids=lambda fault: f"{fault.pattern}-{fault.status or 'cut'}",
)
def test_push_survives_a_fault(registry: Registry, built: Path, tmp_path: Path, fault: Fault) -> None:
    registry.faults.append(fault)
    push(registry, built)
    assert fault.times == 0
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(built)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET .*blobs", times=3, status=500),
        Fault("GET .*blobs", times=3, status=429, headers={"Retry-After": "0"}),
        Fault("GET .*blobs", times=4, cut=900_000),
        Fault("GET .*blobs", cut=0),
        Fault("GET .*blobs", stall=700_000),
        Fault("GET .*manifests", times=2, cut=10),
        Fault("GET .*manifests", times=2, status=503),
        Fault("GET .*blobs", times=40, cut=1_500_000, no_range=True),
    ],
    ids=lambda fault: f"{fault.pattern}-{fault.status or fault.cut}-{fault.no_range}",
)
def test_pull_survives_a_fault(registry: Registry, built: Path, tmp_path: Path, fault: Fault) -> None:
    push(registry, built)
    registry.faults.append(fault)
    if fault.no_range:  # every reply starts at the beginning and is cut before the end, so that it cannot succeed
        with pytest.raises(RegistryError, match="gave up after"):
            pull(registry, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(built)


def test_interrupted_pull_continues_with_a_range_request(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    registry.faults.append(Fault("GET .*blobs", times=100, cut=1_500_000))
    digest = hashlib.sha256((built / TARGET).read_bytes()).hexdigest()
    pull(registry, tmp_path / "out")
    ranges = [seen.headers.get("range", "bytes=0-") for seen in registry.requests(f"GET .*{digest}")]
    assert ranges == [f"bytes={start}-" for start in (0, 1_500_000, 3_000_000, 4_500_000)]


def test_registry_that_never_recovers_fails_and_publishes_nothing(
    registry: Registry, built: Path, tmp_path: Path
) -> None:
    registry.faults.append(Fault("PATCH", times=1000, status=500))
    with pytest.raises(RegistryError, match="HTTP status 500; gave up after 5 attempts"):
        push(registry, built)
    assert registry.manifests == {}
    registry.faults.clear()
    push(registry, built)
    registry.faults.append(Fault("GET .*blobs", times=1000, status=500))
    with pytest.raises(RegistryError, match="gave up after"):
        pull(registry, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_interrupted_push_continues_its_upload(registry: Registry, built: Path, tmp_path: Path) -> None:
    big = make_artifact(tmp_path / "big", target=8 << 20, draft=1000)

    class Killed(BaseException):
        pass

    def stop_in_the_middle(what: str, done: int, total: int) -> None:
        if done > 5 << 20:
            raise Killed

    with pytest.raises(Killed):
        push_artifact(big, f"oci://{registry.host}/team/tiny:v1", patience=QUICK, on_progress=stop_in_the_middle)
    before = registry.received
    assert 4 << 20 <= before <= 6 << 20
    push(registry, big)
    assert registry.received - before < 5 << 20
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(big)
    assert not [*(tmp_path / "cache" / "uploads").glob("*.json")]


def test_upload_of_other_bytes_starts_again(registry: Registry, built: Path, tmp_path: Path) -> None:
    """A registry that reports a wrong digest at the end of an upload receives it again."""
    digest = hashlib.sha256((built / TARGET).read_bytes()).hexdigest()
    registry.faults.append(Fault(f"PUT .*{digest}", status=400))
    push(registry, built)
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(built)


def test_failure_of_one_file_ends_the_others(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    target, draft = (hashlib.sha256((built / path).read_bytes()).hexdigest() for path in (TARGET, DRAFT))
    registry.faults += [Fault(f"GET .*{target}", stall=1000), Fault(f"GET .*{draft}", times=9, flip=77)]
    patient, started = replace(QUICK, read_s=60, exchange_s=60), time.monotonic()
    with pytest.raises(DigestMismatch, match="draft"):
        pull_artifact(f"oci://{registry.host}/team/tiny:v1", lambda *_: tmp_path / "out", patience=patient)
    assert time.monotonic() - started < 20


def test_changed_file_is_not_pushed(registry: Registry, built: Path) -> None:
    for path in (TARGET, "tokenizer/tokenizer.json"):
        data = (built / path).read_bytes()
        (built / path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(DigestMismatch, match="differs from its recorded digest; nothing was published"):
            push(registry, built)
        (built / path).write_bytes(data)
    assert registry.manifests == {}


def test_blob_with_a_flipped_bit_is_refused(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    generator = random.Random(5)
    (digest,) = [each for name, each in registry.blobs if len(registry.blobs[name, each]) == 2 << 20]
    good = registry.blobs["team/tiny", digest]
    for _ in range(5):
        changed = bytearray(good)
        changed[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
        registry.blobs["team/tiny", digest] = bytes(changed)
        with pytest.raises(DigestMismatch, match=r"draft.*is not the promised file"):
            pull(registry, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    registry.blobs["team/tiny", digest] = good
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(built)


def test_manifest_with_a_flipped_bit_is_refused(registry: Registry, built: Path, tmp_path: Path) -> None:
    pushed = push(registry, built)
    generator = random.Random(6)
    good = registry.manifests["team/tiny", "v1"]
    (document,) = [each for _, each in registry.blobs if each == pushed.manifest]
    for place in (0, 1):
        for _ in range(10):
            data = bytearray(good if place else registry.blobs["team/tiny", document])
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            if place:  # the digest in the address does not depend on the registry's word
                registry.manifests["team/tiny", pushed.digest] = bytes(data)
                address = f"oci://{registry.host}/team/tiny@{pushed.digest}"
            else:
                before = registry.blobs["team/tiny", document]
                registry.blobs["team/tiny", document] = bytes(data)
                address = f"oci://{registry.host}/team/tiny:v1"
            with pytest.raises(DigestMismatch):
                pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
            if not place:
                registry.blobs["team/tiny", document] = before
            assert not (tmp_path / "out").exists()


def test_reply_that_is_longer_than_promised_is_refused(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    registry.faults.append(Fault("GET .*blobs", times=1000, extra=b"x"))
    with pytest.raises(TrtspecError):
        pull(registry, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def replace_manifest(registry: Registry, change: object) -> None:
    document = json.loads(registry.manifests["team/tiny", "v1"])
    change(document)  # type: ignore[operator]
    registry.manifests["team/tiny", "v1"] = json.dumps(document).encode()


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", "a//b", ".", "", "a\0b", "x" * 300, "manifest.json/"]
)
def test_path_outside_the_artifact_is_refused(registry: Registry, built: Path, tmp_path: Path, path: str) -> None:
    push(registry, built)
    replace_manifest(registry, lambda each: each["layers"][1]["annotations"].update({"org.cncf.model.filepath": path}))
    with pytest.raises(TrtspecError):
        pull(registry, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda each: each.update(artifactType="application/x"), "not a ModelPack"),
        (lambda each: each.update(schemaVersion=1), "schemaVersion"),
        (lambda each: each["layers"].pop(), "differ in"),
        (lambda each: each["layers"].pop(0), r"has no manifest\.json"),
        (lambda each: each["layers"].append(each["layers"][1]), "listed twice"),
        (lambda each: each["layers"][1].update(size=7), "differ in"),
        (lambda each: each["layers"][1].update(size=-1), "size"),
        (lambda each: each["layers"][1].update(digest="md5:0"), "digest"),
        (lambda each: each["layers"][1].update(mediaType="application/vnd.cncf.model.weight.v1.tar"), "not a raw file"),
        (lambda each: each.update(layers=[each["layers"][1]] * 10_001), "layers"),
    ],
)
def test_manifest_of_another_form_is_refused(
    registry: Registry, built: Path, tmp_path: Path, change: object, complaint: str
) -> None:
    push(registry, built)
    replace_manifest(registry, change)
    with pytest.raises(TrtspecError, match=complaint):
        pull(registry, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_manifest_beyond_the_limit_is_refused(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    registry.manifests["team/tiny", "v1"] += b" " * (4 << 20)
    with pytest.raises(RegistryError, match="exceeds 4,194,304 bytes"):
        pull(registry, tmp_path / "out")


def test_expected_manifest_is_required(registry: Registry, built: Path, tmp_path: Path) -> None:
    pushed = push(registry, built)
    address = f"oci://{registry.host}/team/tiny:v1"
    with pytest.raises(DigestMismatch, match="not the requested artifact"):
        pull_artifact(address, lambda *_: tmp_path / "out", expected="0" * 64, patience=QUICK)
    right = pushed.manifest.removeprefix("sha256:")
    pull_artifact(address, lambda *_: tmp_path / "out", expected=right, patience=QUICK)


def test_foreign_directory_is_not_overwritten(registry: Registry, built: Path, tmp_path: Path) -> None:
    push(registry, built)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(TrtspecError, match="not an artifact"):
        pull(registry, tmp_path / "out")
    assert contents(tmp_path / "out") == {"mine": b"x"}


def test_list_shows_tags_and_foreign_ones(registry: Registry, built: Path) -> None:
    pushed = push(registry, built)
    registry.manifests["team/tiny", "foreign"] = b"{}"
    foreign, own = list_artifacts(f"oci://{registry.host}/team/tiny", patience=QUICK)
    assert (own.tag, own.name, own.manifest, own.digest) == ("v1", "tiny", pushed.manifest, pushed.digest)
    assert own.bytes == pushed.total_bytes + (built / "manifest.json").stat().st_size
    assert (foreign.tag, foreign.name) == ("foreign", "")
    assert "not an OCI image manifest" in foreign.problem


def test_repository_without_tags_differs_from_an_unknown_one(registry: Registry, built: Path) -> None:
    push(registry, built)
    registry.manifests.clear()
    assert list_artifacts(f"oci://{registry.host}/team/tiny", patience=QUICK) == []
    registry.faults.append(Fault("GET .*/tags/list", status=404))
    with pytest.raises(RegistryError, match="no such repository: HTTP status 404") as unknown:
        list_artifacts(f"oci://{registry.host}/team/tiny", patience=QUICK)
    assert "the first push creates a repository" in str(unknown.value.hint)


def test_equal_artifacts_have_equal_documents(registry: Registry, built: Path, tmp_path: Path) -> None:
    first = push(registry, built)
    second = push(registry, make_artifact(tmp_path / "again"), "v2")
    assert first.digest == second.digest
    assert registry.manifests["team/tiny", "v1"] == registry.manifests["team/tiny", "v2"]


def test_equal_files_are_sent_once(registry: Registry, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 << 20)
    root = write_artifact(tmp_path / "equal", {"a.safetensors": data, "b/c.safetensors": data})
    assert push(registry, root).sent_bytes == 3 << 20
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(root)


def test_missing_tag_names_the_command_that_lists_tags(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="has no v9") as raised:
        pull(registry, tmp_path / "out", "v9")
    assert raised.value.hint == f"trtspec list oci://{registry.host}/team/tiny shows its tags"


def test_missing_digest_is_explained(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="push prints the digest of an address as `digest`"):
        pull_artifact(f"oci://{registry.host}/t/t@sha256:{'0' * 64}", lambda *_: tmp_path / "out", patience=QUICK)


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_impossible_port_is_refused(port: int, tmp_path: Path) -> None:
    with pytest.raises(TrtspecError, match="is not oci://HOST/NAME:TAG"):
        pull_artifact(f"oci://localhost:{port}/t/t:v1", lambda *_: tmp_path / "out", patience=QUICK)


def test_first_request_is_repeated_if_the_registry_replies(registry: Registry, tmp_path: Path) -> None:
    registry.faults = [Fault("GET", times=99, status=503)]
    with pytest.raises(RegistryError, match=f"gave up after {QUICK.attempts} attempts"):
        pull_artifact(f"oci://{registry.host}/t/t:v1", lambda *_: tmp_path / "out", patience=QUICK)
    with pytest.raises(RegistryError, match="gave up after 3 attempts"):
        pull_artifact("oci://127.0.0.1:1/t/t:v1", lambda *_: tmp_path / "out", patience=QUICK)


def test_forgotten_upload_of_a_small_file_is_repeated(registry: Registry, tmp_path: Path) -> None:
    root = write_artifact(tmp_path / "small", SMALL)
    registry.faults.append(Fault(r"PUT .*uploads", times=2, status=404))
    push(registry, root)
    assert contents(pull(registry, tmp_path / "out").artifact) == contents(root)


def test_message_of_a_registry_is_escaped(registry: Registry, built: Path) -> None:
    registry.faults.append(Fault("PUT .*uploads", times=100, status=400))
    with pytest.raises(TrtspecError) as raised:
        push(registry, built)
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["oci://", "oci://host", "oci://team/x:v1", "oci:host.x/y", "oci://h.x/UP:v1", "x:y"]
)
def test_malformed_address_is_refused(built: Path, address: str) -> None:
    with pytest.raises(TrtspecError):
        push_artifact(built, address, patience=QUICK)


def test_push_to_a_digest_is_refused(registry: Registry, built: Path) -> None:
    with pytest.raises(TrtspecError, match="to a tag, not to a digest"):
        push_artifact(built, f"oci://{registry.host}/x@sha256:{'0' * 64}", patience=QUICK)


def test_queries_of_addresses_are_not_logged(
    registry: Registry, built: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trtspec")
    registry.faults.append(Fault("PATCH", cut=10))
    push(registry, built)
    with running_registry(blobs=registry.blobs) as other:
        registry.redirect = other.url
        pull(registry, tmp_path / "out")
    assert "PATCH" in caplog.text
    assert "=secret" not in caplog.text


def test_small_files_take_one_upload_request(registry: Registry, tmp_path: Path) -> None:
    root = write_artifact(tmp_path / "small", SMALL)
    push(registry, root)
    assert not registry.requests("PATCH")
    assert upload.SMALL_BYTES == 1 << 20
    assert DRAFT not in contents(root)
