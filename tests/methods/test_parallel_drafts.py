# SPDX-License-Identifier: Apache-2.0
"""Drafts trained to draft in parallel, PARD models and P-EAGLE nets: detection and checks of their config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._support.tiny import SHAPE, make_llama
from tests.conftest import Run
from tests.methods.block_nets import layer_config, layer_tensors, save_net
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import find_method
from trtspec.methods.draft_head import SourceHead, load_head

HIDDEN, VOCAB = SHAPE["hidden_size"], SHAPE["vocab_size"]
AUX = "eagle_aux_hidden_state_layer_ids"
LLAMA = {**layer_config(), "model_type": "llama"}
DIALECTS: dict[str, dict[str, Any]] = {
    "p-eagle-train": {
        **LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "parallel_drafting": True, "ptd_token_id": 5,
        "draft_vocab_size": VOCAB, "eagle_config": {AUX: [0, 1], "use_aux_hidden_state": True},
    },
    "speculators": {
        "speculators_model_type": "peagle", "transformer_layer_config": LLAMA, "draft_vocab_size": VOCAB,
        "mask_token_id": 5, AUX: [1, 2], "norm_before_residual": False,
    },
}  # fmt: skip


def tensors() -> dict[str, Tensor]:
    found = {**layer_tensors(0, width=2), **layer_tensors(1)}
    found |= {"layers.0.hidden_norm.weight": torch.zeros(HIDDEN), "norm.weight": torch.zeros(HIDDEN)}
    found |= {"fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN), "mask_hidden": torch.zeros(1, 1, 2 * HIDDEN)}
    return found | {"lm_head.weight": torch.zeros(VOCAB, HIDDEN)}


def read(root: Path, target: Path, method: str = "p_eagle") -> SourceHead:
    return load_head(root, method, {}, load_model(target, "auto"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("hf"))


@pytest.mark.parametrize("config", DIALECTS.values(), ids=DIALECTS)
def test_p_eagle_net_is_recognized_in_every_dialect(config: dict[str, Any], target: Path, tmp_path: Path) -> None:
    root = save_net(tmp_path / "net", config, tensors())
    head = read(root, target).head
    assert [each.code for each in head.diagnostics if each.severity == "error"] == []
    assert head.num_parameters == sum(tensor.numel() for tensor in tensors().values())
    with pytest.raises(CheckpointError, match="drafts in parallel") as refused:
        read(root, target, "eagle3")
    assert refused.value.hint == "use method: p_eagle"
    source = load_source(root)
    asked = {name: find_method(name).suggest for name in ("p_eagle", "eagle3", "eagle", "pard", "dflash")}
    assert [name for name, suggest in asked.items() if suggest and suggest(source)] == ["p_eagle"]


def test_net_without_mask_hidden_is_rejected_with_method_eagle3(target: Path, tmp_path: Path) -> None:
    one = tensors()
    del one["mask_hidden"]
    with pytest.raises(CheckpointError) as refused:
        read(save_net(tmp_path / "net", DIALECTS["p-eagle-train"], one), target)
    assert refused.value.hint == "use method: eagle3"


@pytest.mark.parametrize(("token", "message"), [(None, "lacks a mask token"), (VOCAB, "outside the vocabulary")])
def test_invalid_mask_token_is_reported(token: int | None, message: str, target: Path, tmp_path: Path) -> None:
    root = save_net(tmp_path / "net", DIALECTS["p-eagle-train"], tensors(), ptd_token_id=token)
    (found,) = [each for each in read(root, target).head.diagnostics if each.code == "mask-token"]
    assert message in found.message


def test_missing_layer_tensor_is_reported(target: Path, tmp_path: Path) -> None:
    few = {name: tensor for name, tensor in tensors().items() if not name.startswith("layers.1.self_attn.")}
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.q_proj\.weight"):
        read(save_net(tmp_path / "net", DIALECTS["speculators"], few), target)


def test_pard_model_requires_a_mask_token(recipe: Path, trtspec: Run) -> None:
    pard = find_method("pard")
    path = recipe.parent / "draft" / "config.json"
    before = json.loads(path.read_text())
    asked = ("check", "--json", recipe, "--set", "speculation.method=pard")
    problems = {each["code"]: each for each in trtspec(*asked).document["problems"]}
    assert "lacks a mask token" in problems["mask-token"]["message"]
    assert problems["mask-token"]["path"] == "speculation.draft.model"
    assert pard.suggest
    assert pard.suggest(load_source(path.parent)) is None
    path.write_text(json.dumps({**before, "pard_token": 3}))
    assert "mask-token" not in {each["code"] for each in trtspec(*asked).document["problems"]}
    assert pard.suggest(load_source(path.parent))
