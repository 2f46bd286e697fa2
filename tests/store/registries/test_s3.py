# SPDX-License-Identifier: Apache-2.0
"""Push and pull on real S3 servers: OpenStack Swift, and rclone. Processes are killed, and several push one tag."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.store.registries.artifacts import DRAFT, TARGET, contents, make_artifact, seal
from tests.store.registries.conftest import REAL
from tests.store.registries.double import Fault
from tests.store.registries.faulty import FaultyProxy, running_proxy
from tests.store.registries.memory import check_memory, large_artifact
from tests.store.registries.s3_servers import SECRET, USER, rclone, running_rclone, running_swift
from tests.store.registries.test_real import check_is_whole, check_tag_is_whole, is_killed_after
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.registries.blobs import BlobIndex, BlobSource
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.locations import s3
from trtspec.store.registries.modelpack import IMAGE_MANIFEST, Descriptor, parse_image_manifest
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.registries.referrers import attach_document, list_referrers
from trtspec.store.registries.repository import Opening, open_location

botocore = pytest.importorskip("botocore.session", reason="botocore is not installed")
BUCKET = "artifacts"
MIB = 1 << 20
QUICK = replace(REAL, attempts=5, longest_pause_s=0.01, read_s=3)


@pytest.fixture(scope="module", params=["swift", "rclone"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server."""
    running = running_swift if request.param == "swift" else running_rclone
    with running(tmp_path_factory.mktemp("s3") / "data") as address:
        secrets = {"aws_access_key_id": USER, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        botocore.get_session().create_client("s3", endpoint_url=address, **secrets).create_bucket(Bucket=BUCKET)
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client with an existing bucket, which is the environment's service for the test."""
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", endpoint),
        ("AWS_ACCESS_KEY_ID", USER),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    return botocore.get_session().create_client("s3", region_name="us-east-1")


def keys(client: Any, prefix: str) -> list[str]:
    return [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.fixture
def proxy(bucket: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy with faults in front of the server, which is the environment's service for the test."""
    with running_proxy(endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", running.url)
        yield running


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with a file of three parts, of which most is zeros."""
    root = tmp_path_factory.mktemp("large") / "built"
    (root / TARGET).parent.mkdir(parents=True)
    with (root / TARGET).open("wb") as file:
        for part in range(3):
            file.seek(part * 64 * MIB)
            file.write(random.Random(part).randbytes(MIB))
    return seal(root, [TARGET])


def only(client: Any, prefix: str) -> list[dict[str, Any]]:
    return list(client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", []))


def test_push_pull_and_list(bucket: Any, built: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/team/tiny:v1"
    pushed = push_artifact(built, address, patience=QUICK)
    again = push_artifact(built, address, patience=QUICK)
    assert (again.digest, again.sent_bytes) == (pushed.digest, 0)
    for number, source in enumerate((address, f"s3://{BUCKET}/team/tiny@{pushed.digest}")):
        pulled = pull_artifact(source, lambda *_, number=number: tmp_path / f"out{number}", patience=QUICK)
        assert pulled.digest == pushed.digest
        assert contents(pulled.artifact) == contents(built)
    (listed,) = list_artifacts(address, patience=QUICK)
    assert (listed.tag, listed.name, listed.digest) == ("v1", "tiny", pushed.digest)


def test_new_draft_sends_only_its_bytes(bucket: Any, built: Path, tmp_path: Path) -> None:
    push_artifact(built, f"s3://{BUCKET}/drafts/tiny:v1", patience=QUICK)
    other = make_artifact(tmp_path / "other", draft_seed=1)
    assert push_artifact(other, f"s3://{BUCKET}/drafts/tiny:v2", patience=QUICK).sent_bytes == 2 * MIB
    assert [each.tag for each in list_artifacts(f"s3://{BUCKET}/drafts/tiny", patience=QUICK)] == ["v1", "v2"]


def test_rest_of_a_file_is_read_from_an_offset(bucket: Any, built: Path) -> None:
    """rclone's server sends a range with the status of a whole body."""
    push_artifact(built, f"s3://{BUCKET}/ranges/tiny:v1", patience=QUICK)
    data, stopped = (built / TARGET).read_bytes(), Event()
    repository = s3.S3Repository(f"//{BUCKET}/ranges/tiny", Opening(False, QUICK, stopped, BlobIndex()))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob = Descriptor(mediaType="application/octet-stream", digest=digest, size=len(data))
    assert b"".join(map(bytes, repository.pieces(blob, 4 * MIB))) == data[4 * MIB :]
    repository.close()


def test_rclone_reads_what_was_pushed(bucket: Any, endpoint: str, built: Path, tmp_path: Path) -> None:
    push_artifact(built, f"s3://{BUCKET}/peers/tiny:v1", patience=QUICK)
    rclone(endpoint, "copy", f"s3:{BUCKET}/peers/tiny", str(tmp_path / "copy"))
    blobs = {path.name: path.read_bytes() for path in (tmp_path / "copy" / "blobs" / "sha256").iterdir()}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in blobs.items()} == {name: name for name in blobs}
    assert {*contents(built).values()} <= {*blobs.values()}
    tag = json.loads((tmp_path / "copy" / "tags" / "v1").read_bytes())
    assert tag["digest"].removeprefix("sha256:") in blobs


def test_interrupted_upload_sends_only_the_missing_parts(
    bucket: Any, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, sent, is_broken = f"s3://{BUCKET}/parts/large:v1", [], True
    send = s3.S3Service.send

    def limited(self: s3.S3Service, operation: str, arguments: dict[str, Any], *rest: Any) -> Any:
        if operation == "upload_part":
            if is_broken and arguments["PartNumber"] == 3:
                time.sleep(2)
                raise OSError("a crash")
            sent.append(arguments["PartNumber"])
        return send(self, operation, arguments, *rest)

    monkeypatch.setattr(s3.S3Service, "send", limited)
    with pytest.raises(OSError, match="a crash"):
        push_artifact(large, address)
    assert keys(bucket, "parts/") == []
    assert len(only(bucket, "parts/")) == 1
    before, is_broken = sorted(sent), False
    sent.clear()
    assert before
    monkeypatch.delattr(BlobSource, "sha256")  # the first push has read the file for it
    push_artifact(large, address)
    assert sorted([*before, *sent]) == [1, 2, 3]
    assert only(bucket, "parts/") == []
    pulled = pull_artifact(address, lambda *_: tmp_path / "out")
    assert contents(pulled.artifact) == contents(large)


def test_upload_whose_id_was_never_kept_is_aborted(bucket: Any, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed between the service's reply and the state's file."""
    address, keep = f"s3://{BUCKET}/unkept/large:v1", s3._MultipartUpload._keep

    def crash(self: object) -> None:
        raise OSError("a crash")

    monkeypatch.setattr(s3._MultipartUpload, "_keep", crash)
    with pytest.raises(OSError, match="a crash"):
        push_artifact(large, address)
    assert len(only(bucket, "unkept/")) == 1
    monkeypatch.setattr(s3._MultipartUpload, "_keep", keep)
    push_artifact(large, address)
    assert only(bucket, "unkept/") == []


def test_pushers_of_one_file_end_each_others_uploads(
    bucket: Any, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first whole object serves all: the other pushers find their upload ended, and the object in place."""
    address, send = f"s3://{BUCKET}/together/large:v1", s3.S3Service.send
    pushed = []

    def overtaken(self: s3.S3Service, operation: str, arguments: dict[str, Any], *rest: Any) -> Any:
        if operation == "upload_part" and arguments["PartNumber"] == 2 and not pushed:
            pushed.append("")
            with ThreadPoolExecutor(1) as pool:
                pool.submit(push_artifact, large, address).result()
        return send(self, operation, arguments, *rest)

    monkeypatch.setattr(s3.S3Service, "send", overtaken)
    push_artifact(large, address)
    assert only(bucket, "together/") == []
    assert contents(pull_artifact(address, lambda *_: tmp_path / "out").artifact) == contents(large)


@pytest.mark.slow
def test_part_that_another_client_replaced_is_sent_again(
    bucket: Any, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload's id is the only secret of its parts: a part with other bytes has another ETag."""
    address, complete = f"s3://{BUCKET}/replaced/large:v1", s3._MultipartUpload._complete

    def crash(self: object) -> None:
        raise OSError("a crash")

    monkeypatch.setattr(s3._MultipartUpload, "_complete", crash)
    with pytest.raises(OSError, match="a crash"):
        push_artifact(large, address)
    (upload,) = only(bucket, "replaced/")
    try:
        bucket.upload_part(
            Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"], PartNumber=3, Body=b"other bytes"
        )
    except bucket.exceptions.ClientError:
        pytest.skip("this server does not replace a part")
    monkeypatch.setattr(s3._MultipartUpload, "_complete", complete)
    push_artifact(large, address)
    assert contents(pull_artifact(address, lambda *_: tmp_path / "out").artifact) == contents(large)


def test_concurrent_pushes_leave_whole_artifacts(bucket: Any, tmp_path: Path) -> None:
    artifacts = [make_artifact(tmp_path / f"built{number}", MIB + number, draft_seed=number) for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        tags = [f"s3://{BUCKET}/race/tiny:{tag}" for tag in ("same", "same", "same", "same", "a", "b", "c", "d")]
        pushed = list(pool.map(push_artifact, [*artifacts, *artifacts], tags))
    pulled = pull_artifact(tags[0], lambda *_: tmp_path / "out", patience=QUICK)
    assert pulled.digest in {each.digest for each in pushed[:4]}
    assert contents(pulled.artifact) in [contents(root) for root in artifacts]
    listed = {each.tag: each.digest for each in list_artifacts(tags[0], patience=QUICK)}
    assert [listed[tag] for tag in "abcd"] == [each.digest for each in pushed[4:]]


def test_changed_file_is_not_published(bucket: Any, built: Path) -> None:
    (built / DRAFT).write_bytes(b"x" * (built / DRAFT).stat().st_size)
    with pytest.raises(DigestMismatch, match="nothing was published"):
        push_artifact(built, f"s3://{BUCKET}/changed/tiny:v1", patience=QUICK)
    assert keys(bucket, "changed/tags") == []


FAULTS = [
    Fault("GET .*/blobs/", times=2, status=503, headers={"Retry-After": "0"}),
    Fault("GET .*/tags/", status=429),
    Fault("GET .*/blobs/", times=3, cut=100),
    Fault("GET .*/blobs/", stall=100),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.status} {fault.cut} {fault.stall}")
def test_pull_survives_faults(proxy: FaultyProxy, built: Path, tmp_path: Path, fault: Fault) -> None:
    address = f"s3://{BUCKET}/faults/tiny:v1"
    push_artifact(built, address, patience=QUICK)
    proxy.faults.append(replace(fault))
    pulled = pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
    assert contents(pulled.artifact) == contents(built)
    assert proxy.faults[0].times == 0


def test_push_survives_faults(proxy: FaultyProxy, built: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/push-faults/tiny:v1"
    slow_down = b"<Error><Code>SlowDown</Code></Error>"
    proxy.faults += [
        Fault("PUT .*/blobs/", times=2, status=503, extra=slow_down),
        Fault("PUT .*/blobs/", cut=1000),
        Fault("HEAD .*/blobs/", status=500),
        Fault("PUT .*/tags/", status=500, extra=b"<Error><Code>InternalError</Code></Error>"),
    ]
    push_artifact(built, address, patience=QUICK)
    assert [fault.times for fault in proxy.faults] == [0, 0, 0, 0]
    assert contents(pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK).artifact) == contents(built)


def test_flipped_bit_is_refused(proxy: FaultyProxy, built: Path, tmp_path: Path) -> None:
    address = f"s3://{BUCKET}/flipped/tiny:v1"
    push_artifact(built, address, patience=QUICK)
    digest = hashlib.sha256((built / DRAFT).read_bytes()).hexdigest()
    proxy.faults.append(Fault(f"GET .*/{digest}", times=9, flip=12345))
    with pytest.raises(DigestMismatch, match="is not the promised file"):
        pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
    assert not (tmp_path / "out").exists()


def test_endless_failures_end(proxy: FaultyProxy, built: Path) -> None:
    proxy.faults.append(Fault("PUT .*/blobs/", times=1000, status=500))
    with pytest.raises(RegistryError, match="gave up after 5 attempts"):
        push_artifact(built, f"s3://{BUCKET}/endless/tiny:v1", patience=QUICK)


def test_mistakes_are_explained(bucket: Any, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="has no v9"):
        pull_artifact(f"s3://{BUCKET}/none:v9", patience=QUICK)
    with pytest.raises(RegistryError, match="the bucket does not have an object below this prefix"):
        list_artifacts(f"s3://{BUCKET}/none", patience=QUICK)
    with pytest.raises(RegistryError, match=r"NoSuchBucket|404"):
        list_artifacts("s3://not-a-bucket/tiny", patience=QUICK)
    with pytest.raises(RegistryError, match=r"NoSuchBucket|404"):
        push_artifact(built, "s3://not-a-bucket/tiny:v1", patience=QUICK)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(RegistryError, match="HTTP status 403") as refused:
        push_artifact(built, f"s3://{BUCKET}/tiny:v1", patience=QUICK)
    assert "wrong" not in str(refused.value)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(TrtspecError, match=r"(?i)credentials"):
        push_artifact(built, f"s3://{BUCKET}/tiny:v1", patience=QUICK)


@pytest.mark.parametrize("region", ["us-east-1", "cn-north-1", "us-gov-west-1", "xx-new-9"])
def test_addresses_of_services_are_botocores(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    """Lists of addresses that are not loaded, to save memory, do not change an address."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", USER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    from botocore.config import Config

    def found(service: str, *, is_reduced: bool) -> list[str]:
        session = botocore.get_session()
        config = Config(signature_version="s3v4" if service == "s3" else "v4")
        if is_reduced:
            session.get_component("data_loader").file_loader = s3._ServiceFiles()
        client = session.create_client(service, region_name=region, config=config)
        operation = {"s3": "list_buckets", "sts": "get_caller_identity"}.get(service)
        signed = client.generate_presigned_url(operation) if operation else ""
        return [client.meta.endpoint_url, client.meta.region_name, signed.partition("&X-Amz-Date")[0]]

    for service in ("s3", "sts"):
        assert found(service, is_reduced=True) == found(service, is_reduced=False)


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["rclone"], indirect=True)
@pytest.mark.parametrize(("files", "mib"), [(1, 1), (1, 512), (4, 100)])
def test_memory_is_bounded(bucket: Any, tmp_path: Path, files: int, mib: int) -> None:
    root = large_artifact(tmp_path / "built", mib, files)
    check_memory(root, f"s3://{BUCKET}/memory/large:{mib}", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("endpoint", "kills"), [("swift", 8), ("rclone", 8), ("rclone", 100)], indirect=["endpoint"])
def test_killed_push_and_pull_publish_nothing_wrong(bucket: Any, tmp_path: Path, kills: int) -> None:
    """The file of the target has two parts."""
    generator, count, seed = random.Random(kills), 0, 1000 * kills  # other files than with other numbers
    address, out, check = f"s3://{BUCKET}/killed/tiny:v1", tmp_path / "out", tmp_path / "check"
    longest = 2.0
    while count < kills:
        seed += 1
        built = make_artifact(tmp_path / "built", 65 * MIB, 3 * MIB, seed=seed, draft_seed=seed)
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
            longest = 0.5 * longest + 0.5 * (time.monotonic() - started)
        assert contents(out) == contents(built)
    assert only(bucket, "killed/") == []


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("//bucket/a/b:v1", ("bucket", "a/b/", "v1")),
        ("//bucket/a/", ("bucket", "a/", "latest")),
        ("//bucket:v2", ("bucket", "", "v2")),
        (f"//bucket/a@sha256:{'0' * 64}", ("bucket", "a/", f"sha256:{'0' * 64}")),
    ],
)
def test_addresses(rest: str, expected: tuple[str, str, str]) -> None:
    assert s3.parse_address(rest) == expected


@pytest.mark.parametrize(
    "rest", ["bucket/a", "//b", "//bucket/a/../b:v1", "//bucket//a//b", "//bucket/a:", "//bucket/ü"]
)
def test_malformed_addresses(rest: str) -> None:
    with pytest.raises(TrtspecError, match="is not s3://BUCKET/PREFIX:TAG"):
        s3.parse_address(rest)


def test_removal_keeps_what_other_tags_and_their_referrers_need(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "UNUSED_S", -3600.0)
    one, two = make_artifact(tmp_path / "one"), make_artifact(tmp_path / "two", draft_seed=1)
    address = f"s3://{BUCKET}/removal"
    digests = {}
    for tag, root in (("one", one), ("two", two)):
        digests[tag] = push_artifact(root, f"{address}:{tag}", patience=QUICK).digest
    repository = open_location(address, Opening(True, QUICK, Event(), BlobIndex()))
    try:
        for tag, digest in digests.items():
            subject = Descriptor(mediaType=IMAGE_MANIFEST, digest=digest, size=len(repository.manifest(tag)))
            attach_document(repository, subject, "application/x-test", tag.encode())
        repository.remove(["one", "absent"])
        assert repository.tags() == ["two"]
        assert list_referrers(repository, digests["one"]) == []
        (referrer,) = list_referrers(repository, digests["two"])
        (layer,) = parse_image_manifest("", repository.manifest(referrer.digest)).layers
        assert b"".join(map(bytes, repository.pieces(layer, 0))) == b"two"
    finally:
        repository.close()
    pull_artifact(f"{address}:two", lambda manifest, digest: tmp_path / "pulled", patience=QUICK)
    assert contents(tmp_path / "pulled") == contents(two)
    with pytest.raises(TrtspecError, match="has no one"):
        pull_artifact(f"{address}:one", patience=QUICK)
    names = {key.rpartition("/")[2] for key in keys(bucket, "removal/blobs/")}
    assert digests["two"][7:] in names
    assert digests["one"][7:] not in names
