# SPDX-License-Identifier: Apache-2.0
"""Files to publish, the manifest that names them, and a child process that dies at a named point."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.artifacts.manifest import Backend, Manifest, StepRecord
from trtspec.files import FileRecord

Make = Callable[..., tuple[dict[str, Path], Manifest]]


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what would be brought to the disk, in order, instead of waiting for it: no test pulls the plug."""
    paths: list[str] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "rename", lambda source, target: (rename(source, target), paths.append("rename"))[0])
    return paths


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
            records.append(FileRecord(path=path, size=len(text), sha256=digest))
        manifest = Manifest(
            recipe={"name": "tiny", "engine": {"max_batch_size": 8}},
            steps=(StepRecord(name="convert", key=step * 64),),
            files=tuple(records),
            tools={"trtspec": "0.1.0"},
            gpu={},
            backend=Backend(name="embedded", why="no TensorRT-LLM here"),
        )
        return files, manifest

    return make


@pytest.fixture
def die_at() -> Callable[[str, Callable[[], object]], int]:
    """Run a function in a child process that is killed at a failpoint; return minus the signal, or its exit code."""

    def die_at(failpoint: str, work: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            os.environ["TRTSPEC_FAILPOINT"] = failpoint
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return die_at
