# SPDX-License-Identifier: Apache-2.0
"""Small artifacts for tests of registries, written without a build."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from tests._support.manifests import resolved
from trtspec.core.hashing import file_segments
from trtspec.store.artifact import BackendRecord, Manifest, StepRecord
from trtspec.store.file_records import FileRecord

TARGET = "checkpoints/target/rank0.safetensors"
DRAFT = "checkpoints/draft/rank0.safetensors"
SMALL = {
    "tokenizer/tokenizer.json": b"{}",
    "model_repository/tensorrt_llm/1/model.py": b"print()\n",
    "prompts/prompts.jsonl": b'{"prompt": "a"}\n',
    "README.md": b"# a model\n",
    "empty.txt": b"",
}


def make_artifact(
    root: Path, target: int = 5 << 20, draft: int = 2 << 20, *, seed: int = 0, draft_seed: int = 0
) -> Path:
    """Write an artifact with `target` and `draft` random bytes; equal seeds give equal files."""
    files = {**SMALL, TARGET: random_bytes(seed, target), DRAFT: random_bytes(draft_seed + 1000, draft)}
    return write_artifact(root, files)


def random_bytes(seed: int, count: int) -> bytes:
    return random.Random(seed).randbytes(count)


def write_artifact(root: Path, files: Mapping[str, bytes], name: str = "tiny") -> Path:
    """Write files and their manifest."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return seal(root, sorted(files), name)


def seal(root: Path, paths: list[str], name: str = "tiny") -> Path:
    """Write the manifest of existing files."""
    segments = file_segments([root / path for path in paths])
    records = tuple(
        FileRecord(path=path, size=(root / path).stat().st_size, segments=found)
        for path, found in zip(paths, segments, strict=True)
    )
    manifest = Manifest(
        recipe=resolved(name),
        steps=(StepRecord(name="convert", key="0" * 64),),
        files=records,
        tools={},
        gpu={},
        backend=BackendRecord(name="embedded", why="a test"),
    )
    (root / "manifest.json").write_bytes(manifest.render())
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Return the files of a directory by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
