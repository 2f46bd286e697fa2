# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._support.manifests import read_manifest, resolved, write_manifest
from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import Manifest, load_manifest, verify_files

Make = Callable[..., tuple[dict[str, Path], Manifest]]


@pytest.fixture
def artifact(tmp_path: Path, make: Make) -> Path:
    files, manifest = make({"one": "1", "deep/two": "22"})
    out = tmp_path / "artifact"
    for path, source in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(source.read_bytes())
    (out / "manifest.json").write_bytes(manifest.render())
    return out


def edit(artifact: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = read_manifest(artifact)
    change(document)
    write_manifest(artifact, document)


def test_rendered_manifest_matches_the_golden_document(make: Make) -> None:
    _, manifest = make({"one": "1"})
    document = json.loads(manifest.render())
    assert document.pop("digest") == "4b30225e80771a3b188f0b45a854dc09e90709e7bcbd11fad837997135d40138"
    assert document == {
        "schema": "trtspec.manifest/4",
        "recipe": resolved().as_dict(),
        "steps": [{"name": "convert", "key": "a" * 64}],
        "files": [
            {
                "path": "one",
                "size": 1,
                "segments": ["d63bd9a826af91c1fea371965a64e11ee20f13e46b5f52c59901136605b3a487"],
            }
        ],
        "tools": {"trtspec": "0.1.0"},
        "gpu": {},
        "backend": {"name": "embedded", "why": "no TensorRT-LLM here"},
        "memory": [],
        "target_key": "",
    }


def test_loaded_manifest_equals_the_written_one(artifact: Path, make: Make) -> None:
    assert load_manifest(artifact) == make({"one": "1", "deep/two": "22"})[1]


def test_missing_artifact_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TrtspecError, match=r"/none: no artifact: the directory does not exist\nhint: build one with trtspec build"
    ):
        load_manifest(tmp_path / "none")
    with pytest.raises(
        TrtspecError, match=r"not an artifact: manifest\.json is missing\nhint: build one with trtspec build RECIPE"
    ):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"manifest\.json: not valid JSON: Expecting property name .* line 1 column 2"),
        ("[" * 100_000, r"manifest\.json: not valid JSON: "),
        ("\udcff", r"manifest\.json: not valid JSON: 'utf-8' codec can't decode"),
        ("[]", r"manifest\.json: its schema is null; this trtspec reads 'trtspec\.manifest/4'$"),
        ('{"schema": "other/1"}', r"its schema is 'other/1'; this trtspec reads 'trtspec\.manifest/4'$"),
        ('{"schema": "trtspec.manifest/9"}', r"its schema is 'trtspec\.manifest/9'.*\nhint: read it with the trtspec"),
        (
            '{"schema": "trtspec.manifest/1"}',
            r"its schema is 'trtspec\.manifest/1'.*\nhint: an earlier version",
        ),
        (
            '{"schema": "trtspec.manifest/2"}',
            r"its schema is 'trtspec\.manifest/2'; this trtspec reads 'trtspec\.manifest/4'\nhint: an earlier version "
            "of trtspec built it, with other digests of its files; build it again",
        ),
        ('{"schema": "trtspec.manifest/4"}', r"the manifest was modified: its digest differs"),
    ],
)
def test_manifest_with_invalid_json_or_schema_is_rejected(artifact: Path, text: str, said: str) -> None:
    (artifact / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TrtspecError, match=said):
        load_manifest(artifact)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("tools"), "tools: is missing"),
        (lambda d: d.update(more=1), "more: unknown key"),
        (lambda d: d["steps"][0].update(key="abc"), r"steps\.0\.key: does not have the expected form"),
        (lambda d: d["files"][1].update(size=-1), r"files\.1\.size: must be at least 0"),
        (lambda d: d["files"][1].update(path="../x"), r"files\.1\.path: .*'\.\./x' does not stay inside its directory"),
        (lambda d: d["files"][1].update(path="manifest.json"), r"files\.1: .*the manifest cannot list itself"),
    ],
)
def test_manifest_with_invalid_fields_is_rejected(artifact: Path, change: Callable[[Any], object], said: str) -> None:
    edit(artifact, change)
    with pytest.raises(TrtspecError, match=said + r"[^\n]*\nhint: build the artifact again"):
        load_manifest(artifact)


def test_manifest_above_16_mib_is_rejected(artifact: Path) -> None:
    with (artifact / "manifest.json").open("r+b") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(TrtspecError, match="larger than 16,777,216 bytes"):
        load_manifest(artifact)


def test_verify_reports_every_difference(artifact: Path, tmp_path: Path) -> None:
    manifest = load_manifest(artifact)
    assert verify_files(artifact, manifest) == []
    (artifact / "one").write_text("2")
    (artifact / "deep/two").write_text("2")
    assert verify_files(artifact, manifest) == ["one: bytes 0 to 0 differ", "deep/two: has 1 bytes, 2 were recorded"]
    (artifact / "one").unlink()
    (artifact / "deep").rename(tmp_path / "deep")
    assert verify_files(artifact, manifest) == ["one: missing", "deep/two: missing"]
    (tmp_path / "deep/two").write_text("22")
    (artifact / "deep").symlink_to(tmp_path / "deep")
    (artifact / "one").mkdir()
    not_ours = "not a regular file of the artifact"
    assert verify_files(artifact, manifest) == [f"one: {not_ours}", f"deep/two: {not_ours}"]
    (tmp_path / "link").symlink_to(artifact)
    (artifact / "one").rmdir()
    (artifact / "one").write_text("1")
    (artifact / "deep").unlink()
    (tmp_path / "deep").rename(artifact / "deep")
    assert verify_files(tmp_path / "link", manifest) == [], "the artifact itself may be reached by a link"
