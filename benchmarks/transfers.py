# SPDX-License-Identifier: Apache-2.0
"""Measure push and pull of one large file against their limits: hashing, writing, and plain HTTP transfers.

Each command runs in a new process with an empty cache, which reports its wall time, processor time and largest memory.
The real servers of `make registry` and `make s3` run on the same machine; their processor time is reported separately.
The file has random bytes, or with `--sparse` zeros and 1 % random bytes. It is read before, so it is in the page cache.

    python -m benchmarks.transfers [--mib 1024] [--rounds 3] [--sparse] [--folder DIR] dir tar oci rclone swift
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from blake3 import blake3

from tests.store.registries.artifacts import seal
from tests.store.registries.real import running_docker_registry
from tests.store.registries.s3_servers import SECRET, USER, running_rclone, running_swift
from trtspec.core.hashing import read_chunks

MIB = 1 << 20
FILE, BUCKET = "weights.safetensors", "transfers"
COMMAND = """
import json, os, sys, time
import trtspec, trtspec.store.registries.pull, trtspec.store.registries.push
before, started = os.times(), time.perf_counter()
{code}
wall, after = time.perf_counter() - started, os.times()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
cpu = after.user - before.user + after.system - before.system
print(json.dumps({{"wall": wall, "cpu": cpu, "peak": int(status["VmHWM"].split()[0]) / 1024}}))
"""


def make_artifact(root: Path, mib: int, sparse: bool) -> Path:
    """Write an artifact of one file."""
    root.mkdir(parents=True)
    generator = random.Random(mib)
    with (root / FILE).open("wb") as file:
        file.truncate(mib * MIB)
        for number in range(0, mib, 100 if sparse else 1):
            file.seek(number * MIB)
            file.write(generator.randbytes(MIB))
        os.fsync(file.fileno())
    return seal(root, [FILE])


def run_code(code: str, cache: Path) -> dict[str, float]:
    """Return the measurement of Python code in a new process with an empty cache."""
    shutil.rmtree(cache, ignore_errors=True)
    variables = {**os.environ, "TRTSPEC_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(code=code)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def provide_memory(nbytes: int, scratch: Path) -> None:
    """Write and remove a file, so that the page cache next takes memory that a virtual machine already has.

    A host may take free memory back. Its first use then costs several times the processor time of a write.
    """
    block = bytes(MIB)
    with scratch.open("wb", buffering=0) as file:
        for _ in range(nbytes // MIB):
            file.write(block)
    scratch.unlink()


def measure(name: str, source: Path, work: Callable[[], dict[str, float] | None]) -> None:
    """Print the wall time and processor time of a function, and the processor time that the servers used."""
    provide_memory(source.stat().st_size * 5 // 4, source.with_name("scratch"))
    servers, before, started = server_seconds(), os.times(), time.perf_counter()
    found = work()
    wall, after = time.perf_counter() - started, os.times()
    found = found or {"wall": wall, "cpu": after.user - before.user + after.system - before.system, "peak": 0.0}
    server = server_seconds() - servers
    print(
        f"{name:16} wall {found['wall']:6.2f} s  processor {found['cpu']:6.2f} s  server {server:6.2f} s"
        f"  peak {found['peak']:4.0f} MiB",
        flush=True,
    )


def server_seconds() -> float:
    """Return the processor time of this process's running children."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        if int(fields[1]) == os.getpid():
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def measure_limits(source: Path, copy: Path) -> str:
    """Measure SHA-256, BLAKE3, and a copy with fsync; return the SHA-256."""
    digest = hashlib.sha256()

    def each(work: Callable[[memoryview], object]) -> None:
        with source.open("rb") as file:
            for piece in read_chunks(file.fileno()):
                work(piece)

    def write() -> None:
        with copy.open("wb", buffering=0) as file:
            each(file.write)
            os.fsync(file.fileno())

    measure("SHA-256", source, lambda: each(digest.update))
    measure("BLAKE3", source, lambda: each(lambda piece: blake3(piece).digest()))
    measure("copy and fsync", source, write)
    copy.unlink()
    return digest.hexdigest()


def measure_http(host: str, name: str, sha256: str, source: Path, copy: Path) -> None:
    """Measure an upload in one request and a download to a file, without any verification by the client."""
    connection, nbytes = HTTPConnection(host, timeout=600), source.stat().st_size

    def exchange(method: str, url: str, **more: object) -> str:
        connection.request(method, url.removeprefix(f"http://{host}"), **more)  # type: ignore[arg-type]
        response = connection.getresponse()
        response.read()
        return response.getheader("Location", "")

    def put() -> None:
        with source.open("rb") as file:
            upload = exchange("POST", f"/v2/{name}/blobs/uploads/")
            headers = {"Content-Length": str(nbytes), "Content-Type": "application/octet-stream"}
            upload = exchange("PATCH", upload, body=file, headers=headers)
        exchange("PUT", f"{upload}&digest=sha256:{sha256}")

    def get() -> None:
        buffer = memoryview(bytearray(MIB))
        connection.request("GET", f"/v2/{name}/blobs/sha256:{sha256}")
        response = connection.getresponse()
        with copy.open("wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            while count := response.readinto(buffer):
                file.write(buffer[:count])
            os.fsync(file.fileno())

    measure("plain upload", source, put)
    measure("plain download", source, get)
    copy.unlink()


@contextmanager
def location(kind: str, folder: Path) -> Iterator[str]:
    """Provide the address of a location of a kind, without a tag."""
    os.environ |= {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    if kind == "oci":
        with running_docker_registry(folder) as host:
            yield f"oci://{host}/measured"
    elif kind in ("rclone", "swift"):
        with (running_rclone if kind == "rclone" else running_swift)(folder) as endpoint:
            from botocore.session import get_session

            os.environ["AWS_ENDPOINT_URL"] = endpoint
            get_session().create_client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
            yield f"s3://{BUCKET}/measured"
    else:
        yield f"file:{folder}{'.tar' if kind == 'tar' else ''}"


def measure_kind(kind: str, root: Path, folder: Path, sha256: str) -> None:
    """Measure a push to a new location, and the pull from it."""
    source = root / FILE
    with location(kind, folder / kind) as address:
        if kind == "oci":
            measure_http(urlsplit(address).netloc, "plain", sha256, source, folder / "copy")
        tag, out = f"{address}:v1", str(folder / "out")
        measure(f"push {kind}", source, lambda: run_code(f"trtspec.push({str(root)!r}, {tag!r})", folder / "cache"))
        measure(f"pull {kind}", source, lambda: run_code(f"trtspec.pull({tag!r}, out={out!r})", folder / "cache"))
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=["dir", "tar", "oci", "rclone", "swift"])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/transfers"))
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    root, work = make_artifact(folder / "artifact", arguments.mib, arguments.sparse), folder / "work"
    work.mkdir()
    try:
        for _ in range(arguments.rounds):
            sha256 = measure_limits(root / FILE, work / "copy")
            for kind in arguments.kinds:
                measure_kind(kind, root, work, sha256)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
