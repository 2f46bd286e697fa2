# SPDX-License-Identifier: Apache-2.0
"""Copies in the store share their source's blocks on a real file system that can (Btrfs in a file, mounted)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENGINES = Path(os.environ.get("ENGINES", Path(__file__).parents[2]))
SIZE = 24 << 20
# CLONE_NEWNS is 0x20000. Only this process and its children see the mount.
COPY = """
import ctypes, json, os, subprocess, sys
from pathlib import Path
image, place = sys.argv[1:]
assert ctypes.CDLL(None, use_errno=True).unshare(0x20000) == 0
for mount in ("--make-rprivate /", f"-o loop {image} {place}"):
    subprocess.run(["mount", *mount.split()], check=True)

from trtspec.backends.common.steps import CopyFiles
from trtspec.core.hashing import file_segments
from trtspec.store.digest import DigestCache
from trtspec.store.files import FileReader
from trtspec.store.store import Store

def used():
    os.sync()
    status = os.statvfs(place)
    return (status.f_blocks - status.f_bfree) * status.f_frsize

source = Path(place, "source")
source.mkdir()
(source / "model.safetensors").write_bytes(os.urandom(int(os.environ["SIZE"])))
before = used()
store = Store(Path(place, "store"))
Path(place, "store").mkdir()
step = CopyFiles("target", FileReader(DigestCache(Path(place, "digests.json"))).read(source, source.iterdir()))
elsewhere = step.disk_bytes(Path("/dev/shm"))
planned = step.disk_bytes(store.root)
entry = store.obtain(step).entry
copy = entry.files_dir / "model.safetensors"
print(json.dumps({
    "planned": [planned, elsewhere],
    "grown": used() - before,
    "equal": copy.read_bytes() == (source / copy.name).read_bytes(),
    "recorded": list(entry.files[0].segments) == list(file_segments([copy])[0]),
    "sound": store.verify() == [],
}))
with (source / copy.name).open("r+b") as file:
    file.write(b"changed")
print(json.dumps(store.verify()))
"""


@pytest.mark.slow
def test_copy_in_the_store_shares_the_blocks_of_its_source(tmp_path: Path) -> None:
    make = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:{ENGINES / '.btrfs/sbin'}")
    if not make or os.geteuid() != 0:
        pytest.skip("needs root and mkfs.btrfs (make btrfs)")
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(160 << 20)
    subprocess.run([make, "-q", image], check=True, capture_output=True, timeout=60)
    command = [sys.executable, "-c", COPY, str(image), str(place)]
    environment = {**os.environ, "SIZE": str(SIZE), "TRTSPEC_CACHE": str(place / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if "mount" in done.stderr and "failed" in done.stderr:
        pytest.skip(f"cannot mount: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    first, problems = map(json.loads, done.stdout.splitlines())
    assert first.pop("grown") < SIZE // 8
    assert first == {"planned": [0, SIZE], "equal": True, "recorded": True, "sound": True}
    assert problems == []  # a later change of the source does not reach the copy
