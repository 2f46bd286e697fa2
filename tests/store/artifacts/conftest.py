# SPDX-License-Identifier: Apache-2.0
"""Files to publish, their manifest, and a child process that dies at a failpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from tests._support.durability import die_at, finish, start, synced  # noqa: F401
from tests._support.manifests import resolved
from trtspec.store.artifact import BackendRecord, Manifest, StepRecord
from trtspec.store.file_records import FileRecord

Make = Callable[..., tuple[dict[str, Path], Manifest]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write source files from {path: text}; return what to publish and its manifest."""

    def make(texts: dict[str, str], step: str = "a") -> tuple[dict[str, Path], Manifest]:
        files, records = {}, []
        for path, text in texts.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            source = tmp_path / "sources" / digest
            source.parent.mkdir(exist_ok=True)
            if not source.exists():
                source.write_text(text)
                source.chmod(0o444)
            files[path] = source
            records.append(FileRecord(path=path, size=len(text), segments=(blake3(text.encode()).hexdigest(),)))
        manifest = Manifest(
            recipe=resolved(),
            steps=(StepRecord(name="convert", key=step * 64),),
            files=tuple(records),
            tools={"trtspec": "0.1.0"},
            gpu={},
            backend=BackendRecord(name="embedded", why="no TensorRT-LLM here"),
        )
        return files, manifest

    return make
