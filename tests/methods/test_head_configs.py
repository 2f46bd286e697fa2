# SPDX-License-Identifier: Apache-2.0
"""Configs of draft heads with values of their target: its number of layers, its rotary keys, its LM head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import make_llama
from tests.families.sources import edit
from tests.methods import eagle3_heads, eagle_heads
from trtspec.checkpoints.source_model import load_model
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.draft_head import SourceHead, load_head, resolve_num_layers

LAYERS = 7


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("hf"), num_hidden_layers=LAYERS)


def read(root: Path, method: str, target: Path) -> SourceHead:
    return load_head(root, method, {}, load_model(target, "auto"))


def found(head: SourceHead, code: str) -> list[Diagnostic]:
    return [each for each in head.head.diagnostics if each.code == code]


def eagle3(root: Path, **config: Any) -> Path:
    return eagle3_heads.save_head(eagle3_heads.random_head((0, 4, 6)), root, **config)


def test_eagle3_head_layers_are_counted_from_its_tensors(target: Path, tmp_path: Path) -> None:
    head = read(eagle3(tmp_path / "head", num_hidden_layers=40), "eagle3", target)
    (warning,) = found(head, "layers")
    assert (warning.severity, warning.message) == (
        "warning",
        "num_hidden_layers is 40, but the tensors' number of layers is 1, which is used",
    )
    assert head.head.models["eagle3_net_config"].num_layers == 1
    assert found(read(eagle3(tmp_path / "right", num_hidden_layers=1), "eagle3", target), "layers") == []


def test_eagle_head_layers_are_counted_from_its_tensors(target: Path, tmp_path: Path) -> None:
    root = eagle_heads.save_head(tmp_path / "head", eagle_heads.random_head())
    edit(root, num_hidden_layers=32)
    (warning,) = found(read(root, "eagle", target), "layers")
    assert "32" in warning.message


def test_num_layers_of_the_target_is_replaced_by_the_tensor_count() -> None:
    assert resolve_num_layers(configured=40, found=4, target_layers=40) == 4
    assert resolve_num_layers(configured=5, found=4, target_layers=40) == 5  # a layer is then missing
    assert resolve_num_layers(configured=4, found=4, target_layers=4) == 4


@pytest.mark.parametrize("layout", ["specforge", "speculators"])
def test_rope_theta_outside_rope_parameters_is_used(layout: str, target: Path, tmp_path: Path) -> None:
    root = eagle3(tmp_path / "head", layout=layout)
    path = root / "config.json"
    config = json.loads(path.read_text())
    layer = config["transformer_layer_config"] if layout == "speculators" else config
    for key in ("rope_parameters", "rope_scaling", "rope_theta"):
        layer.pop(key, None)
    layer |= {"rope_parameters": {"rope_type": "default"}, "rope_theta": 50}
    path.write_text(json.dumps(config))
    head = read(root, "eagle3", target)
    assert head.head.models["eagle3_net_config"].rotary_base == 50.0
    assert "rotary embedding has base 50," in found(head, "rope")[0].message


@pytest.mark.parametrize("is_equal", [True, False])
def test_lm_head_of_an_eagle_head_is_compared_with_the_target(is_equal: bool, target: Path, tmp_path: Path) -> None:
    theirs = load_file(target / "model.safetensors")["lm_head.weight"]
    own = theirs.clone() if is_equal else theirs + torch.ones_like(theirs)
    root = eagle_heads.save_head(tmp_path / "head", eagle_heads.random_head() | {"lm_head.weight": own})
    head = read(root, "eagle", target)
    assert [each.severity for each in found(head, "lm-head")] == ([] if is_equal else ["warning"])
    assert head.matched.skipped["lm_head.weight"] == f"{'' if is_equal else 'not '}equal to the target's, which is used"
