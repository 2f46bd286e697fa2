# SPDX-License-Identifier: Apache-2.0
"""DFlash and DSpark nets: reading every dialect, and diagnostics of mismatches with the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import SHAPE, make_llama
from tests.conftest import Run
from tests.methods.block_nets import (
    BLOCK,
    DFLASH,
    DSPARK,
    INNER,
    MASK,
    OUTPUTS,
    RANK,
    net_tensors,
    save_net,
    speculators,
)
from trtspec.backends.sglang.versions import releases as sglang_releases
from trtspec.backends.vllm.versions import releases as vllm_releases
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import find_method, methods
from trtspec.methods.dflash import VARIANTS, find_variant, read_block_net, special_keys
from trtspec.methods.draft_head import SourceHead, load_head

HIDDEN, VOCAB = SHAPE["hidden_size"], SHAPE["vocab_size"]
CASES = [("dflash", *DFLASH[name]) for name in DFLASH] + [("dspark", *DSPARK[name]) for name in DSPARK]
NAMES = [f"dflash-{name}" for name in DFLASH] + [f"dspark-{name}" for name in DSPARK]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("hf"))


def read(root: Path, target: Path, kind: str = "dflash", draft_len: int | None = None) -> SourceHead:
    return load_head(root, kind, {}, load_model(target, "auto"), draft_len)


def said(head: SourceHead) -> dict[str, str]:
    """Return the diagnostics by code, without the warnings caused by the tiny shapes."""
    return {each.code: each.message for each in head.head.diagnostics if each.code not in ("positions", "rope")}


@pytest.mark.parametrize(("kind", "config", "markov", "drafts"), CASES, ids=NAMES)
def test_block_net_of_every_dialect_is_read_identically(
    kind: str, config: dict[str, Any], markov: str | None, drafts: int, target: Path, tmp_path: Path
) -> None:
    root = save_net(tmp_path / "net", config, net_tensors(markov))
    net = read_block_net(load_source(root), "bfloat16", kind)
    assert (net.block_size, net.drafts, net.mask_token, net.target_layers) == (BLOCK, drafts, MASK, OUTPUTS)
    assert (net.target_hidden_size, net.draft_vocab_size, net.layer.num_layers) == (HIDDEN, VOCAB, 2)
    assert (net.markov_rank, net.markov_head) == ((RANK, "vanilla") if kind == "dspark" else (0, ""))
    assert net.confidence_width == (HIDDEN + RANK if kind == "dspark" else 0)
    head = read(root, target, kind)
    assert said(head) == {}
    assert head.head.num_parameters == sum(tensor.numel() for tensor in net_tensors(markov).values())
    suggesting = [name for name, method in methods().items() if name != "draft_target" and method.suggest]
    found = [name for name in suggesting if find_method(name).drafts_with != "nothing"]
    assert [name for name in found if (ask := find_method(name).suggest) and ask(load_source(root))] == [kind]
    suggestion = ask(load_source(root)) if (ask := find_method(kind).suggest) else None
    assert suggestion
    assert suggestion.draft_len == drafts


def test_block_net_of_another_kind_is_rejected_with_its_method(target: Path, tmp_path: Path) -> None:
    config, markov, _ = DSPARK["DeepSpec"]
    root = save_net(tmp_path / "net", config, net_tensors(markov))
    with pytest.raises(CheckpointError, match="a dspark net, expected a dflash net") as refused:
        read(root, target)
    assert refused.value.hint == "use method: dspark"


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"num_target_layers": 36}, "aux-layers", "the net is for a target of 36 layers, this target has 2"),
        (
            {"dflash_config": {**INNER, "target_layer_ids": [1, 2]}},
            "aux-layers",
            "it reads the outputs of layers 1, 2, but the target's layers are 0..1",
        ),
        ({"dflash_config": {**INNER, "target_layer_ids": [1, 0]}}, "aux-layers", "layers 1, 0"),
        ({"dflash_config": {**INNER, "mask_token_id": VOCAB}}, "mask-token", f"outside the vocabulary, 0..{VOCAB - 1}"),
        ({"draft_vocab_size": 40}, "vocabulary", "d2t and lm_head.weight are missing"),
    ],
)
def test_block_net_mismatch_with_the_target_is_reported(
    changes: dict[str, Any], code: str, message: str, target: Path, tmp_path: Path
) -> None:
    root = save_net(tmp_path / "net", DFLASH["z-lab"][0], net_tensors(), **changes)
    found = said(read(root, target))
    assert set(found) == {code}
    assert message in found[code]


def test_block_size_limits_the_draft_length(target: Path, tmp_path: Path) -> None:
    root = save_net(tmp_path / "net", DFLASH["z-lab"][0], net_tensors())
    assert said(read(root, target, draft_len=7)) == {}
    assert said(read(root, target, draft_len=8)) == {
        "block-size": "draft_len is 8, but its block of 8 drafts at most 7 tokens"
    }
    at_anchor = save_net(tmp_path / "anchor", DSPARK["DeepSpec"][0], net_tensors("markov_head."))
    assert said(read(at_anchor, target, "dspark", draft_len=8)) == {}


def test_hidden_size_and_vocabulary_mismatches_are_reported(target: Path, tmp_path: Path) -> None:
    config = {**DFLASH["z-lab"][0], "target_hidden_size": 2 * HIDDEN, "vocab_size": VOCAB + 8}
    tensors = net_tensors() | {"fc.weight": torch.zeros(HIDDEN, 4 * HIDDEN)}
    found = said(read(save_net(tmp_path / "net", config, tensors), target))
    assert set(found) == {"hidden-size", "vocabulary"}


def test_speculators_layer_ids_are_one_based(target: Path, tmp_path: Path) -> None:
    config = speculators("dflash", BLOCK - 1, aux_hidden_state_layer_ids=[0, 1])
    found = said(read(save_net(tmp_path / "net", config, net_tensors()), target))
    assert (
        "layers -1, 0, but the target's layers are 0..1 (aux_hidden_state_layer_ids minus one)" in found["aux-layers"]
    )


def test_missing_sample_from_anchor_is_reported(target: Path, tmp_path: Path) -> None:
    config, markov, _ = DSPARK["speculators"]
    root = save_net(tmp_path / "net", config, net_tensors(markov), sample_from_anchor=None)
    assert "speculators trains with true, vLLM defaults to false" in said(read(root, target, "dspark"))["anchor"]


def test_draft_length_that_contradicts_the_block_size_is_reported(target: Path, tmp_path: Path) -> None:
    root = save_net(tmp_path / "net", speculators("dflash", BLOCK), net_tensors())
    assert "has 8 tokens per step, its block of 8 drafts 7" in said(read(root, target))["block-size"]


def drafted_ids(values: torch.Tensor) -> dict[str, torch.Tensor]:
    marked = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, torch.arange(4, 44), True)
    small = {"lm_head.weight": torch.zeros(40, HIDDEN), "d2t": values, "t2d": marked}
    return net_tensors() | small


def test_absolute_ids_in_d2t_are_reported(target: Path, tmp_path: Path) -> None:
    config = {**DFLASH["z-lab"][0], "draft_vocab_size": 40}
    right = save_net(tmp_path / "right", config, drafted_ids(torch.full((40,), 4)))
    assert said(read(right, target)) == {}
    ids = save_net(tmp_path / "ids", config, drafted_ids(torch.arange(4, 44)))
    assert said(read(ids, target))["d2t"].startswith("d2t has absolute ids of the target")


def test_missing_and_misshapen_tensors_are_both_reported(target: Path, tmp_path: Path) -> None:
    tensors = net_tensors() | {"fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN)}
    del tensors["hidden_norm.weight"]
    with pytest.raises(CheckpointError, match=r"(?s)fc\.weight: .*hidden_norm\.weight"):
        read(save_net(tmp_path / "net", DFLASH["z-lab"][0], tensors), target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "describes no net, expected a dflash net"),
        ({"dflash_config": {"target_layer_ids": [0]}}, "lacks 'mask_token_id'"),
        ({"dflash_config": {**INNER, "projector_type": "domino"}}, "projector_type is 'domino'"),
        ({"dflash_config": {**INNER, "target_layer_ids": ["a"]}}, "expected numbers of layers"),
    ],
)
def test_invalid_block_net_config_is_rejected(
    changes: dict[str, Any], message: str, target: Path, tmp_path: Path
) -> None:
    root = save_net(tmp_path / "net", DFLASH["z-lab"][0], net_tensors(), **changes)
    with pytest.raises(CheckpointError, match=message):
        read(root, target)


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, ["architectures"]),
        ({"conv_kernel_size": 2, "selector_top_k": 16}, ["conv_kernel_size", "selector_top_k"]),
        ({"speculators_model_type": "dflash2"}, ["speculators_model_type"]),
        (
            {"architectures": ["Qwen3XPressModel"], "xpress_rank": 256, "xpress_topc": 64},
            ["xpress_rank", "xpress_topc"],
        ),
        ({"architectures": ["DFlashQwen3XPressModel"]}, ["architectures"]),
        ({"speculators_model_type": "xpress", "num_jacobi_passes": 6}, ["num_jacobi_passes"]),
        ({"architectures": ["DFlashDraftModel"]}, []),
    ],
)
def test_variant_is_another_computation_than_dflash(config: dict[str, Any], keys: list[str]) -> None:
    """The torch engine refuses these keys, because it would draft without convolutions, selector or refiner."""
    source = Source(Path("/nowhere"), {"block_size": 8, "target_layer_ids": [1]} | config, {}, {})
    assert (find_variant(source) is not None) is bool(keys)
    assert special_keys(source) == keys


def test_variants_name_the_first_releases_that_run_them() -> None:
    for variant, net, theirs in (
        ("DFlash2", "DFlash2DraftModel", "0.5.19"),
        ("XPress", "DFlashQwen3XPressModel", None),
    ):
        first = next(version for version, release in vllm_releases().items() if net in release.heads)
        engines = next(each.engines for each in VARIANTS if each.name == variant)
        assert f"vLLM from {first.removesuffix('.0')}" in engines
        found = [each for each, release in sglang_releases().items() if net in release.nets["dflash"]]
        assert (found or [None])[0] == theirs
        assert ("SGLang" in engines) is bool(theirs)
        assert theirs is None or f"SGLang from {theirs}" in engines


def test_init_proposes_the_draft_length_of_the_block(recipe: Path, trtspec: Run, tmp_path: Path) -> None:
    root = save_net(tmp_path / "net", DFLASH["z-lab"][0], net_tensors(), block_size=4)
    document = trtspec("init", recipe.parent / "target", root, "--json").document
    chosen = {each["path"]: each["value"] for each in document["choices"]}
    assert (chosen["speculation.method"], chosen["speculation.draft_len"]) == ("dflash", 3)
