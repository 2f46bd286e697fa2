# SPDX-License-Identifier: Apache-2.0
"""Previews of hub models: the files that are downloaded and cached, and the errors."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests._support.hub import COMMIT, Hub, asked_in_process, serving
from tests._support.shapes import make_checkpoint, shapes
from trtspec.checkpoints import hub as hub_module
from trtspec.checkpoints import previews
from trtspec.checkpoints.hub import HubError
from trtspec.checkpoints.previews import (
    MAX_PREVIEWS,
    compare_tokenizers,
    find_preview,
    make_preview,
    preview_dir,
    previews_dir,
    prune_previews,
    with_model_ids,
)
from trtspec.checkpoints.source import Source, load_source
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import UNREAD
from trtspec.core.paths import recipes_dir

MODELS = recipes_dir() / "models"


@pytest.fixture
def hub(tmp_path: Path, workplace: Path) -> Iterator[Hub]:
    """A hub that serves the quickstart's models as org/NAME to this process."""
    for name in ("target", "draft", "eagle3"):
        shutil.copytree(MODELS / f"quickstart-{name}", tmp_path / "served" / "org" / name)
    with serving(tmp_path / "served") as hub, asked_in_process(hub):
        yield hub


@pytest.fixture
def large(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the quickstart's tokenizers as large ones."""
    monkeypatch.setattr(previews, "SMALL_BYTES", 5000)


def asked(hub: Hub) -> set[str]:
    return {each.what for each in hub.asked}


def described(source: Source) -> list[tuple[object, ...]]:
    return [(each.name, each.dtype, each.shape, each.offset, each.nbytes) for each in source.tensors.values()]


@pytest.mark.slow
def test_preview_matches_the_checkpoint_without_its_weights(hub: Hub) -> None:
    source, whole = make_preview("org/target", COMMIT), load_source(MODELS / "quickstart-target")
    assert (source.config, described(source)) == (whole.config, described(whole))
    assert source.absent == {
        "model.safetensors": (UNREAD, (MODELS / "quickstart-target/model.safetensors").stat().st_size, 0)
    }
    assert hub.sent < 200_000


@pytest.mark.slow
def test_preview_contains_id_tables_but_not_weights(hub: Hub) -> None:
    source, whole = make_preview("org/eagle3", COMMIT), load_source(MODELS / "quickstart-eagle3")
    assert data(source, "d2t") == data(whole, "d2t")
    assert not any(data(source, "fc.weight"))


def data(source: Source, name: str) -> bytes:
    tensor = source.tensors[name]
    return tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]


@pytest.mark.slow
def test_preview_of_190_shards_is_small_fast_and_cached(hub: Hub) -> None:
    shape = next(shape for shape in shapes() if shape.name == "llama-3.1-405b-instruct")
    root = hub.root / "meta-llama" / "large"
    make_checkpoint(shape, root)
    assert len(list(root.glob("*.safetensors"))) > 150
    (root / "tokenizer.json").write_text('{"model": {' + " " * 9_000_000 + "}}")
    begun = time.process_time()  # includes the hub's time; wall time is meaningless on a busy machine
    source = make_preview("meta-llama/large", COMMIT)
    assert time.process_time() - begun < 2
    assert hub.sent < 2_000_000
    assert described(source) == described(load_source(root))
    hub.asked.clear()
    again = make_preview("meta-llama/large", COMMIT)
    assert (described(again), hub.asked) == (described(source), [])


@pytest.mark.slow
def test_previews_directory_is_private(hub: Hub) -> None:
    make_preview("org/target", COMMIT)
    assert stat.S_IMODE(previews_dir().stat().st_mode) == 0o700


class TestAnInterruption:
    @pytest.mark.slow
    def test_interrupted_preview_resumes_with_the_missing_files(self, hub: Hub) -> None:
        hub.refusals["model.safetensors"] = 500, ""
        with pytest.raises(HubError, match="HTTP status 500"):
            make_preview("org/target", COMMIT)
        assert find_preview(preview_dir("org/target", COMMIT)) is None
        hub.refusals.clear()
        hub.asked.clear()
        assert make_preview("org/target", COMMIT).tensors
        assert asked(hub) == {"info", "model.safetensors"}

    @pytest.mark.slow
    def test_truncated_preview_file_is_fetched_again(self, hub: Hub) -> None:
        root = make_preview("org/target", COMMIT).root
        os.truncate(root / "model.safetensors", 100)
        hub.asked.clear()
        assert make_preview("org/target", COMMIT).tensors
        assert asked(hub) == {"info", "model.safetensors"}

    @pytest.mark.slow
    def test_error_stops_further_requests(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_module, "TIMEOUT_S", 0.2)
        root = hub.root / "org" / "many"
        root.mkdir()
        shutil.copy(MODELS / "quickstart-target" / "config.json", root)
        names = [f"model-{number}.safetensors" for number in range(200)]
        for name in names:
            save_file({name: np.zeros(8, np.float32)}, root / name)
            hub.stops[name] = 10
        begun = time.monotonic()
        with pytest.raises(HubError, match="ReadTimeout"):
            make_preview("org/many", COMMIT)
        assert time.monotonic() - begun < 3
        assert len(hub.asked) < 60


class TestTokenizers:
    @pytest.mark.slow
    def test_large_tokenizer_is_not_fetched_only_its_length(self, hub: Hub, large: None) -> None:
        source = make_preview("org/target", COMMIT)
        assert "tokenizer.json" in source.absent
        assert not hub.got("tokenizer.json")
        assert (source.root / "tokenizer.json").stat().st_size == source.absent["tokenizer.json"][1]

    @pytest.mark.slow
    def test_equal_tokenizers_are_compared_without_fetching(self, hub: Hub, large: None) -> None:
        compare_tokenizers(make_preview("org/target", COMMIT), make_preview("org/draft", COMMIT))
        assert not hub.got("tokenizer.json")

    @pytest.mark.slow
    def test_tokenizers_with_different_files_are_fetched_once(self, hub: Hub, large: None) -> None:
        path = hub.root / "org" / "draft" / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()), indent=1))
        for _ in range(2):
            compare_tokenizers(make_preview("org/target", COMMIT), make_preview("org/draft", COMMIT))
        assert len(hub.got("tokenizer.json")) == 2

    @pytest.mark.slow
    def test_different_tokenizers_are_reported(self, hub: Hub, large: None) -> None:
        path = hub.root / "org" / "draft" / "tokenizer.json"
        path.write_text(path.read_text().replace('"model"', '"modem"', 1).replace('"modem"', '"model"', 1) + " ")
        document = json.loads(path.read_text())
        vocab = document["model"]["vocab"]
        vocab["never seen before"] = vocab.pop(next(iter(vocab)))
        path.write_text(json.dumps(document))
        with pytest.raises(TrtspecError, match="draft and target have different tokenizers"):
            compare_tokenizers(make_preview("org/target", COMMIT), make_preview("org/draft", COMMIT))

    @pytest.mark.slow
    def test_local_tokenizer_is_compared_with_a_hub_tokenizer(self, hub: Hub, large: None) -> None:
        compare_tokenizers(load_source(MODELS / "quickstart-target"), make_preview("org/draft", COMMIT))
        assert len(hub.got("tokenizer.json")) == 1


class TestWhatCannotBeHad:
    @pytest.mark.slow
    @pytest.mark.parametrize("status", [401, 403])
    def test_gated_model_is_an_error(self, status: int, hub: Hub) -> None:
        hub.refusals["model.safetensors"] = status, "GatedRepo"
        with pytest.raises(HubError) as refused:
            make_preview("org/target", COMMIT)
        assert refused.value.message == "access to the model is gated"
        assert refused.value.hint == "request access on the model's page, then set HF_TOKEN to a token with read access"

    @pytest.mark.slow
    def test_hub_without_range_requests_is_an_error(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.ranges = False
        with pytest.raises(HubError, match="the hub does not support range requests"):
            make_preview("org/target", COMMIT)

    @pytest.mark.slow
    def test_index_with_a_missing_shard_is_an_error(self, hub: Hub) -> None:
        index = {"weight_map": {"x": "model-00002-of-00002.safetensors"}}
        (hub.root / "org" / "target" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match=r"the index names .*, which is missing"):
            make_preview("org/target", COMMIT)

    @pytest.mark.slow
    def test_bytes_after_the_last_tensor_are_an_error(self, hub: Hub) -> None:
        with (hub.root / "org" / "target" / "model.safetensors").open("ab") as file:
            file.write(b"more")
        with pytest.raises(CheckpointError, match="4 bytes after the last tensor") as refused:
            make_preview("org/target", COMMIT)
        assert refused.value.where == "org/target/model.safetensors"


def test_least_recently_used_previews_are_pruned(workplace: Path) -> None:
    for number in range(MAX_PREVIEWS + 3):
        root = preview_dir(f"org/{number}", COMMIT)
        root.mkdir(parents=True)
        os.utime(root, (number, number))
    prune_previews()
    assert not preview_dir("org/2", COMMIT).exists()
    assert preview_dir("org/3", COMMIT).exists()


def test_preview_paths_in_messages_are_replaced_by_model_ids(workplace: Path) -> None:
    path = preview_dir("org/model", COMMIT) / "config.json"
    assert with_model_ids(f"{path}: lacks 'vocab_size'") == "org/model/config.json: lacks 'vocab_size'"
    assert with_model_ids(f"{previews_dir()}/gpt2/{COMMIT}") == "gpt2"
