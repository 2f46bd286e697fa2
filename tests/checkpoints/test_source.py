# SPDX-License-Identifier: Apache-2.0
"""Checkpoint directories: errors are reported before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from trtspec.checkpoints.source import load_source, locate_model
from trtspec.core.errors import CheckpointError


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.zeros(4, np.float32)}, tmp_path / "model-2.safetensors")
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    return tmp_path


def write_index(root: Path, weight_map: object) -> None:
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def refused(root: Path, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_source(root)
    assert message in str(caught.value)


def test_shards_are_merged_into_one_source(sharded: Path) -> None:
    source = load_source(sharded)
    assert {name: tensor.file.name for name, tensor in source.tensors.items()} == {
        "a": "model-1.safetensors",
        "b": "model-2.safetensors",
    }
    assert source.nbytes == 28


class TestTheIndex:
    def test_index_naming_a_missing_shard_is_rejected(self, sharded: Path) -> None:
        (sharded / "model-2.safetensors").unlink()
        refused(sharded, "index.json: names the shard model-2.safetensors, which is missing")

    def test_index_that_contradicts_a_shard_is_rejected(self, sharded: Path) -> None:
        write_index(sharded, {"a": "model-2.safetensors", "b": "model-2.safetensors"})
        refused(sharded, "index.json: maps 'a' to model-2.safetensors, which does not contain it")

    def test_index_without_a_stored_tensor_is_rejected(self, sharded: Path) -> None:
        save_file({"b": np.zeros(4, np.float32), "c": np.zeros(1, np.float32)}, sharded / "model-2.safetensors")
        refused(sharded, "index.json: lacks 'c', which model-2.safetensors contains")

    @pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", ".safetensors"])
    def test_index_with_an_invalid_shard_name_is_rejected(self, sharded: Path, shard: str) -> None:
        write_index(sharded, {"a": shard})
        refused(sharded, f"shard {shard!r} is not the name of a .safetensors file in this directory")

    @pytest.mark.parametrize("weight_map", [None, [], {"a": 3}])
    def test_index_with_an_invalid_weight_map_is_rejected(self, sharded: Path, weight_map: object) -> None:
        write_index(sharded, weight_map)
        refused(sharded, "its weight_map does not map tensor names to files")


class TestTheDirectory:
    def test_directory_without_config_is_rejected(self, tmp_path: Path) -> None:
        refused(tmp_path, "config.json: cannot be read: No such file or directory")

    def test_config_that_is_not_json_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"a": ')
        refused(tmp_path, "config.json: not valid JSON")

    def test_config_that_is_too_large_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(" " * (1 << 20) + "{}")
        refused(tmp_path, "config.json: larger than 1,048,576 bytes")

    def test_directory_with_only_a_pickle_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        refused(tmp_path, "no *.safetensors file\nhint: pytorch_model.bin is a pickle, and pickles are not opened")

    def test_tensor_in_two_shards_is_rejected(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        for shard in ("one", "two"):
            save_file({"a": np.zeros(3, np.float32)}, tmp_path / f"{shard}.safetensors")
        refused(tmp_path, "two.safetensors: tensor 'a' is also in one.safetensors")

    def test_truncated_shard_is_rejected(self, sharded: Path) -> None:
        shard = sharded / "model-2.safetensors"
        shard.write_bytes(shard.read_bytes()[:-5])
        refused(sharded, "model-2.safetensors: truncated: its tensors need")


class TestLocating:
    def test_directory_is_located_as_itself(self, tmp_path: Path) -> None:
        assert locate_model(str(tmp_path), None) == tmp_path

    def test_missing_directory_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no such directory"):
            locate_model(str(tmp_path / "none"), None)

    def test_similar_name_beside_a_missing_directory_is_proposed(self, tmp_path: Path) -> None:
        (tmp_path / "Qwen3-8B").mkdir()
        (tmp_path / "Qwen3-9B").touch()
        with pytest.raises(CheckpointError) as caught:
            locate_model(str(tmp_path / "Qwen3-8b"), None)
        assert caught.value.hint == f"did you mean 'Qwen3-8B' in {tmp_path}?"

    def test_file_instead_of_a_directory_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        with pytest.raises(CheckpointError, match="is a file, not a directory"):
            locate_model(str(tmp_path / "x"), None)

    def test_hub_id_is_located_in_the_cache_or_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        commit = "0" * 40
        with pytest.raises(
            CheckpointError, match=f"{commit} is not in the hub cache\nhint: trtspec build downloads it"
        ):
            locate_model("org/model", commit)
        snapshot = tmp_path / "models--org--model" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        assert locate_model("org/model", commit) == snapshot


def test_hf_quant_config_is_part_of_the_source_files(sharded: Path) -> None:
    weights = [sharded / "model-1.safetensors", sharded / "model-2.safetensors"]
    assert load_source(sharded).files == [sharded / "config.json", *weights]
    (sharded / "hf_quant_config.json").write_text("{}")
    assert load_source(sharded).files == [sharded / "config.json", sharded / "hf_quant_config.json", *weights]
