# SPDX-License-Identifier: Apache-2.0
"""Random bit flips in blobs and manifests: each is refused, and nothing is published."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.store.registries.artifacts import contents, make_artifact
from trtspec.core.errors import TrtspecError
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact

FLIPS = int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "2000"))


@pytest.mark.slow
def test_random_flips_are_refused(tmp_path: Path) -> None:
    built, layout, out = make_artifact(tmp_path / "built", 5000, 2000), tmp_path / "layout", tmp_path / "out"
    pushed = push_artifact(built, f"file:{layout}:v1")
    blobs = sorted(path for path in layout.rglob("blobs/sha256/*") if path.stat().st_size)
    generator = random.Random(45)
    for number in range(FLIPS):
        changed = blobs[number % len(blobs)]
        good = changed.read_bytes()
        data = bytearray(good)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        changed.write_bytes(data)
        kept = tmp_path / ".out.partial"
        for path in kept.iterdir() if kept.is_dir() else ():  # files that an earlier pull has kept are not read again
            path.unlink()
        with pytest.raises(TrtspecError):
            pull_artifact(f"file:{layout}:v1", lambda *_: out)
        assert not out.exists()
        changed.write_bytes(good)
    assert pull_artifact(f"file:{layout}:v1", lambda *_: out).manifest == pushed.manifest
    assert contents(out) == contents(built)
