# SPDX-License-Identifier: Apache-2.0
"""Conversion of recurrent drafters into the target's checkpoint: reading, error messages, and NVIDIA's format.

Names and keys are from NVIDIA/TensorRT-LLM, examples/redrafter/convert_checkpoint.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama, make_model
from tests.conftest import Run
from tests.methods.recurrent import GENERATIONS, HIDDEN, VOCAB, Drafter, convert_with, random_drafter
from tests.planning.check.finding import problems_of
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_head import SourceHead, load_head

ODD = VOCAB - 1
STORED = {
    "input_proj.weight": "drafter.input_proj.weight",
    "input_proj.bias": "drafter.input_proj.bias",
    "lm_head.0.linear.weight": "drafter.layers.0.linear.weight",
    "lm_head.0.linear.bias": "drafter.layers.0.linear.bias",
    "lm_head.1.linear.weight": "drafter.layers.1.linear.weight",
    "lm_head.1.linear.bias": "drafter.layers.1.linear.bias",
    "lm_head.2.weight": "drafter.lm_head.weight",
    "rnn_u.weight": "drafter.rnn_u.weight",
    "rnn_u.bias": "drafter.rnn_u.bias",
    "rnn_w.weight": "drafter.rnn_w.weight",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an odd vocabulary size."""
    return make_llama(tmp_path_factory.mktemp("hf"), vocab_size=ODD)


def drafters_of(root: Path) -> list[dict[str, torch.Tensor]]:
    """Return the drafter's tensors in a converted checkpoint, by rank."""
    files = sorted(root.glob("rank*.safetensors"))
    return [{name: value for name, value in load_file(file).items() if "drafter" in name} for file in files]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_converted_ranks_concatenate_to_the_source(generation: str, tensor: int, source: Path, tmp_path: Path) -> None:
    drafter = random_drafter(2, vocab=ODD)
    head_root = drafter.save(tmp_path / "drafter", generation)
    ranks = drafters_of(convert_with(source, head_root, tmp_path / "out", mapping=ParallelMapping(tensor)))
    assert len(ranks) == tensor
    for rank in ranks:
        assert rank.keys() == set(STORED.values())
    for theirs, ours in STORED.items():
        joined, whole = torch.cat([rank[ours] for rank in ranks]), drafter.tensors[theirs]
        assert len(joined) == -(-len(whole) // tensor) * tensor  # the vocabulary is padded
        assert torch.equal(joined[: len(whole)], whole)


@pytest.mark.parametrize(
    ("drafter", "left_out"),
    [
        (random_drafter(2, vocab=ODD, exit_dim=2 * HIDDEN), {"drafter.input_proj.weight", "drafter.input_proj.bias"}),
        (random_drafter(2, vocab=ODD, rnn=False), {name for name in STORED.values() if ".rnn_" in name}),
    ],
    ids=["no-first-layer", "sum"],
)
def test_optional_drafter_tensors_may_be_missing(
    drafter: Drafter, left_out: set[str], source: Path, tmp_path: Path
) -> None:
    out = convert_with(source, drafter.save(tmp_path / "drafter"), tmp_path / "out")
    assert drafters_of(out)[0].keys() == set(STORED.values()) - left_out
    assert json.loads((out / "config.json").read_text())["redrafter_is_rnn"] is drafter.rnn


@pytest.mark.parametrize(
    ("family", "architecture", "base"),
    [
        ("llama", "ReDrafterForLLaMALM", "LlamaForCausalLM"),
        ("mistral", "ReDrafterForLLaMALM", "MistralForCausalLM"),
        ("qwen2", "ReDrafterForQWenLM", "Qwen2ForCausalLM"),
        ("qwen3", "ReDrafterForQWenLM", "Qwen3ForCausalLM"),
    ],
)
def test_config_json_describes_the_redrafter(family: str, architecture: str, base: str, tmp_path: Path) -> None:
    head_root = random_drafter(2).save(tmp_path / "drafter")
    options = {"beams": 7, "greedy": False}
    out = convert_with(make_model(tmp_path / "hf", family), head_root, tmp_path / "out", options, 4)
    config = json.loads((out / "config.json").read_text())
    assert {key: value for key, value in config.items() if "redrafter" in key or "architecture" in key} == {
        "architecture": architecture,
        "base_model_architecture": base,
        "redrafter_num_layers": 2,
        "redrafter_hidden_size": HIDDEN,
        "redrafter_exit_dim": 48,
        "redrafter_is_rnn": True,
        "redrafter_num_beams": 7,
        "redrafter_draft_len_per_beam": 4,
        "redrafter_greedy_search": False,
    }


def test_drafter_of_a_quantized_target_is_not_quantized(source: Path, tmp_path: Path) -> None:
    drafter = random_drafter(2, vocab=ODD)
    out = convert_with(source, drafter.save(tmp_path / "drafter"), tmp_path / "out", scheme=Scheme("fp8_rowwise"))
    (stored,) = drafters_of(out)
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    quantization = json.loads((out / "config.json").read_text())["quantization"]
    assert quantization["exclude_modules"] == ["lm_head", "*drafter*"]


def read(head_root: Path, source: Path, **options: Any) -> SourceHead:
    return load_head(head_root, "redrafter", options, load_model(source, "auto"))


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Drafter:
    drafter = random_drafter(2, vocab=ODD)
    change(drafter.tensors)
    return drafter


BAD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], dict[str, Any], str]] = {
    "another number of layers": (
        lambda tensors: None,
        {"num_draft_layers": 3},
        "/config.json: does not contain a recurrent drafter of 3 layers: the tensors lm_head.3.weight, lm_heads.3",
    ),
    "an absurd number of layers": (
        lambda tensors: None,
        {"num_draft_layers": 10**9},
        "/config.json: num_draft_layers is 1000000000, expected a number of at most 64",
    ),
    "a negative one": (
        lambda tensors: None,
        {"num_draft_layers": -1},
        "/config.json: num_draft_layers is -1, expected",
    ),
    "no number": (
        lambda tensors: None,
        {"num_draft_layers": None},
        "/config.json: lacks 'num_draft_layers'",
    ),
    "a size that is a word": (
        lambda tensors: None,
        {"exit_dim": "wide"},
        "/config.json: exit_dim is 'wide', expected int",
    ),
    "the reference's default size": (
        lambda tensors: None,
        {"hidden_size": -1},
        "/config.json: hidden_size is -1, expected a positive number",
    ),
    "another exit_dim": (
        lambda tensors: None,
        {"exit_dim": 40},
        ": 7 tensors do not add up:\n  input_proj.bias: [48] in model.safetensors, but [40] according to config.json",
    ),
    "no first layer": (
        lambda tensors: [tensors.pop(f"input_proj.{kind}") for kind in ("weight", "bias")],
        {},
        ": 2 tensors do not add up:\n  input_proj.bias: missing\n  input_proj.weight: missing",
    ),
    "a first layer too many": (
        lambda tensors: None,
        {"exit_dim": 2 * HIDDEN},
        ": 7 tensors do not add up:\n  input_proj.bias: no rule uses it",
    ),
    "not recurrent": (
        lambda tensors: None,
        {"rnn": False},
        ": 3 tensors do not add up:\n  rnn_u.bias: no rule uses it",
    ),
}


@pytest.mark.parametrize(("change", "config", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_drafter_is_rejected(
    change: Callable[[dict[str, torch.Tensor]], object],
    config: dict[str, Any],
    message: str,
    source: Path,
    tmp_path: Path,
) -> None:
    head_root = changed(change).save(tmp_path / "drafter", **config)
    with pytest.raises(CheckpointError) as caught:
        read(head_root, source)
    assert str(caught.value).startswith(f"{head_root}{message}")


def test_drafter_for_another_model_is_rejected_with_all_mismatches(source: Path, tmp_path: Path) -> None:
    head_root = random_drafter(hidden=HIDDEN // 2).save(tmp_path / "drafter")
    assert [(diagnostic.code, diagnostic.message) for diagnostic in read(head_root, source).head.diagnostics] == [
        ("hidden-size", "the drafter is for hidden states of 16, the target's have 32"),
        ("vocabulary", "the drafter is for 64 vocabulary entries, the target has 63"),
    ]
    with pytest.raises(CheckpointError, match=r"hidden states of 16, .*; the drafter is for 64 vocabulary entries"):
        convert_with(source, head_root, tmp_path / "out")


def test_options_determine_the_draft_shape() -> None:
    method = find_method("redrafter")
    assert method.draft_shape(method.parse({}), method.default_draft_len) == DraftShape(5, 25)
    assert method.draft_shape(method.parse({"beams": 3}), 2) == DraftShape(2, 6)


@pytest.fixture
def redrafter(recipe: Path) -> Path:
    """The pair's recipe with a recurrent drafter instead of the draft model."""
    hidden = TARGET_SHAPE["hidden_size"]
    random_drafter(exit_dim=2 * hidden, hidden=hidden, vocab=PAIR_VOCAB).save(recipe.parent / "drafter")
    text = recipe.read_text().replace("draft_target", "redrafter").replace("./draft\n", "./drafter\n")
    recipe.write_text(text)
    return recipe


class TestRecipes:
    @pytest.mark.slow
    def test_compatible_drafter_builds_and_is_lossless(self, redrafter: Path, trtspec: Run) -> None:
        assert trtspec("check", redrafter, "--json").document["problems"] == []
        assert trtspec("build", redrafter).code == 0
        config = json.loads(Path("build/tiny/checkpoints/target/config.json").read_text())
        assert config["redrafter_draft_len_per_beam"] == 3
        verified = trtspec("verify", "build/tiny", "--max-tokens", 8, "--json").document
        assert verified["ok"], verified

    @pytest.mark.parametrize(
        ("setting", "path", "message"),
        [
            ("options.beams=51", "options.beams", "beams must be at most 50, got 51"),
            ("options.beam=3", "options.beam", "redrafter has no option 'beam' (beams, greedy)"),
            ("draft_len=33", "draft_len", "redrafter takes 1..32 draft tokens"),
            ("draft.model=./target", "draft.model", "/config.json: lacks 'num_draft_layers'"),
        ],
    )
    def test_invalid_settings_are_reported_by_check(
        self, setting: str, path: str, message: str, redrafter: Path, trtspec: Run
    ) -> None:
        (problem,) = problems_of(trtspec, redrafter, "--set", f"speculation.{setting}")
        assert problem["path"] == f"speculation.{path}"
        assert message in problem["message"]
