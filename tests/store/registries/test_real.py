# SPDX-License-Identifier: Apache-2.0
"""Push and pull on a real registry: Distribution 2.8. Processes are killed, and several push one tag."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.store.registries.artifacts import DRAFT, TARGET, contents, make_artifact
from tests.store.registries.conftest import REAL
from tests.store.registries.memory import check_memory, large_artifact
from tests.store.registries.real import skopeo
from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import load_manifest, verify_files
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.registries.repository import opened_location
from trtspec.store.team.maintenance import list_remote

MIB = 1 << 20


def test_round_trip_and_documents(docker_registry: str, tmp_path: Path) -> None:
    built = make_artifact(tmp_path / "built")
    pushed = push_artifact(built, f"oci://{docker_registry}/real/tiny:v1", patience=REAL)
    again = push_artifact(built, f"oci://{docker_registry}/real/tiny:v1", patience=REAL)
    assert (again.digest, again.sent_bytes) == (pushed.digest, 0)
    pulled = pull_artifact(
        f"oci://{docker_registry}/real/tiny@{pushed.digest}", lambda *_: tmp_path / "out", patience=REAL
    )
    assert contents(pulled.artifact) == contents(built)
    (listed,) = list_artifacts(f"oci://{docker_registry}/real/tiny", patience=REAL)
    assert (listed.tag, listed.digest) == ("v1", pushed.digest)


def test_unknown_repository_is_an_error_and_an_empty_one_has_no_tags(docker_registry: str, tmp_path: Path) -> None:
    address = f"oci://{docker_registry}/real/never"
    with pytest.raises(RegistryError, match="no such repository: HTTP status 404, NAME_UNKNOWN"):
        list_artifacts(address, patience=REAL)
    assert list_remote(address, lambda *_: None, REAL) == []
    push_artifact(make_artifact(tmp_path / "built"), f"{address}:v1", patience=REAL)
    with opened_location(address, REAL, for_writing=True) as (repository, _):
        repository.remove(["v1"])
    assert list_artifacts(address, patience=REAL) == []


def test_chunked_upload_and_mount(docker_registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.store.registries.locations.oci.CHUNK_BYTES", MIB)
    built = make_artifact(tmp_path / "built", seed=7, draft_seed=7)
    push_artifact(built, f"oci://{docker_registry}/chunks/a:v1", patience=REAL)
    mounted = push_artifact(built, f"oci://{docker_registry}/chunks/b:v1", patience=REAL)
    assert mounted.sent_bytes < 1000
    pull_artifact(f"oci://{docker_registry}/chunks/b:v1", lambda *_: tmp_path / "out", patience=REAL)
    assert contents(tmp_path / "out") == contents(built)


def test_concurrent_pushes_of_one_tag_leave_one_whole_artifact(docker_registry: str, tmp_path: Path) -> None:
    address = f"oci://{docker_registry}/race/tiny:v1"
    artifacts = [make_artifact(tmp_path / f"built{number}", MIB + number, draft_seed=number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        pushed = list(pool.map(lambda root: push_artifact(root, address, patience=REAL), [*artifacts, *artifacts]))
    pulled = pull_artifact(address, lambda *_: tmp_path / "out", patience=REAL)
    assert pulled.digest in {each.digest for each in pushed}
    assert contents(pulled.artifact) in [contents(root) for root in artifacts]


def is_killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Run a function in a fork and kill it after some time; return whether it was still running."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0
            return False
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 100])
def test_killed_push_and_pull_publish_nothing_wrong(docker_registry: str, tmp_path: Path, kills: int) -> None:
    generator, address = random.Random(kills), f"oci://{docker_registry}/killed/tiny:{kills}"
    out, check, longest, count, seed = tmp_path / "out", tmp_path / "check", 1.0, 0, kills
    while count < kills:
        seed += 1  # other bytes each time, so that there is something to send
        built = make_artifact(tmp_path / "built", 16 * MIB, 3 * MIB, seed=seed, draft_seed=seed)
        for work, verify in (
            (lambda built=built: push_artifact(built, address), lambda: check_tag_is_whole(address, check)),
            (lambda: pull_artifact(address, lambda *_: out), lambda: check_is_whole(out)),
        ):
            before = count
            while count < before + 4 and is_killed_after(generator.uniform(0.01, longest), work):
                count += 1
                verify()
            started = time.monotonic()
            assert not is_killed_after(60, work)
            longest = 0.9 * longest + 0.1 * (time.monotonic() - started)
        assert contents(out) == contents(built)
    assert not [*tmp_path.glob(".out.partial")]


def check_is_whole(root: Path) -> None:
    """Check that a directory is absent or a whole artifact."""
    if root.exists():
        assert verify_files(root, load_manifest(root)) == []


def check_tag_is_whole(address: str, out: Path) -> None:
    """Pull a tag in this process: it is absent or a whole artifact."""
    with suppress(RegistryError):  # the tag does not exist yet
        pull_artifact(address, lambda *_: out, patience=REAL)


def test_flipped_bit_in_the_registrys_storage_is_refused(
    docker_registry: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    built = make_artifact(tmp_path / "built", seed=11, draft_seed=11)
    push_artifact(built, f"oci://{docker_registry}/flipped/tiny:v1", patience=REAL)
    digest = hashlib.sha256((built / DRAFT).read_bytes()).hexdigest()
    stored, *_ = tmp_path_factory.getbasetemp().glob(f"registry*/data/docker/registry/v2/blobs/sha256/*/{digest}/data")
    data = bytearray(stored.read_bytes())
    data[12345] ^= 4
    stored.write_bytes(data)
    with pytest.raises(TrtspecError, match="is not the promised file"):
        pull_artifact(f"oci://{docker_registry}/flipped/tiny:v1", lambda *_: tmp_path / "out", patience=REAL)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("files", "mib"), [(1, 64), (1, 1024), (4, 100)])
def test_memory_is_bounded(docker_registry: str, tmp_path: Path, files: int, mib: int) -> None:
    root = large_artifact(tmp_path / "large", mib, files)
    check_memory(root, f"oci://{docker_registry}/memory/large:{mib}", tmp_path / "out")
    assert (tmp_path / "out" / TARGET).stat().st_size == mib * MIB


def test_oras_reads_what_was_pushed(docker_registry: str, tmp_path: Path) -> None:
    """ORAS' own client checks the manifest by its schema and writes the files under their paths."""
    client = pytest.importorskip("oras.client", reason="ORAS' Python client is not installed")
    schemas, jsonschema = pytest.importorskip("oras.schemas"), pytest.importorskip("jsonschema")
    built = make_artifact(tmp_path / "built", seed=31)
    push_artifact(built, f"oci://{docker_registry}/peers/oras:v1", patience=REAL)
    oras = client.OrasClient(hostname=docker_registry, insecure=True)
    jsonschema.validate(oras.get_manifest(f"{docker_registry}/peers/oras:v1"), schemas.manifest)
    oras.pull(target=f"{docker_registry}/peers/oras:v1", outdir=str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(built)


def test_skopeo_copies_what_was_pushed_to_layouts_and_back(docker_registry: str, tmp_path: Path) -> None:
    """The library of Podman and CRI-O reads the registry's artifact and both kinds of our layouts."""
    built = make_artifact(tmp_path / "built", seed=41)
    pushed = push_artifact(built, f"oci://{docker_registry}/peers/skopeo:v1", patience=REAL)
    skopeo("copy", "--src-tls-verify=false", f"docker://{docker_registry}/peers/skopeo:v1", f"oci:{tmp_path}/copy:v1")
    skopeo("copy", f"oci:{tmp_path}/copy:v1", f"oci-archive:{tmp_path}/copy.tar:v1")
    for kind, source in (("oci", "layout"), ("oci-archive", "layout.tar")):
        push_artifact(built, f"file:{tmp_path}/{source}:v1")
        skopeo(
            "copy",
            "--dest-tls-verify=false",
            f"{kind}:{tmp_path}/{source}:v1",
            f"docker://{docker_registry}/back/{kind}:v1",
        )
    addresses = [f"file:{tmp_path}/copy:v1", f"file:{tmp_path}/copy.tar:v1"]
    addresses += [f"oci://{docker_registry}/back/{kind}:v1" for kind in ("oci", "oci-archive")]
    for number, address in enumerate(addresses):
        out = tmp_path / f"out{number}"
        pulled = pull_artifact(address, lambda *_, out=out: out, patience=REAL)
        assert pulled.manifest == pushed.manifest
        assert contents(out) == contents(built)
