# SPDX-License-Identifier: Apache-2.0
"""Conversion of EAGLE-3 heads into the target's checkpoint: reading four layouts, and error messages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests._support.tiny import PAIR_VOCAB, SHAPE, TARGET_SHAPE, make_llama, reference_model
from tests.conftest import Run
from tests.methods.eagle3_heads import AUX, ROPE, Eagle3Tensors, convert_with, random_head, save_head
from tests.planning.check.finding import problems_of
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_head import SourceHead, load_head

METHOD = find_method("eagle3")
LAYERS = 7
# The paper's layers for a target of 7 layers: the outputs of the second, the third and the fourth.
AUX_OF_PAPER = (1, 2, 3)
LAYER = "eagle3.layers.0"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target."""
    return make_llama(tmp_path_factory.mktemp("hf"), num_hidden_layers=LAYERS, rope_parameters=ROPE)


def heads_of(root: Path) -> list[dict[str, Tensor]]:
    """Return the heads' tensors in a converted checkpoint, by rank."""
    files = sorted(root.glob("rank*.safetensors"))
    return [{name: value for name, value in load_file(file).items() if "eagle3" in name} for file in files]


def config_of(root: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((root / "config.json").read_text())
    return config


def stored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a head's tensors in stored form, by TensorRT-LLM's names."""
    layer = {name.removeprefix("layers.0."): value for name, value in tensors.items() if name.startswith("layers.0.")}
    renamed = {
        "self_attn.o_proj": "attention.dense", "mlp.gate_proj": "mlp.fc", "mlp.up_proj": "mlp.gate",
        "mlp.down_proj": "mlp.proj", "post_attention_layernorm": "post_layernorm", "hidden_norm": "hidden_norm",
        "input_layernorm": "input_layernorm", "self_attn.q_norm": "attention.q_layernorm",
        "self_attn.k_norm": "attention.k_layernorm",
    }  # fmt: skip
    found = {
        f"{LAYER}.{ours}.weight": layer[f"{theirs}.weight"]
        for theirs, ours in renamed.items()
        if f"{theirs}.weight" in layer
    }
    for kind in ("weight", "bias"):
        if f"self_attn.q_proj.{kind}" in layer:
            qkv = [layer[f"self_attn.{name}_proj.{kind}"] for name in "qkv"]
            found[f"{LAYER}.attention.qkv.{kind}"] = torch.cat(qkv)
    for name, value in tensors.items():
        if not name.startswith("layers.0.") and name != "t2d":
            found[f"eagle3.{name.replace('embed_tokens', 'vocab_embedding')}"] = value
    return found


NETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole vocabulary": {"drafted": SHAPE["vocab_size"]},
    "all there can be": {"bias": True, "qk_norm": True, "own_embedding": True, "fc_norm": True},
    "one norm before fc": {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
}


class TestConversion:
    @pytest.mark.parametrize("kind", NETS.values(), ids=NETS.keys())
    def test_converted_tensors_equal_the_source(self, kind: dict[str, Any], source: Path, tmp_path: Path) -> None:
        head = random_head((0, 4, 6), **kind)
        (found,) = heads_of(convert_with(source, save_head(head, tmp_path / "head"), tmp_path / "out"))
        expected = stored(head.tensors)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name

    def test_converted_ranks_concatenate_to_the_single_rank(self, source: Path, tmp_path: Path) -> None:
        head_root = save_head(random_head((0, 4, 6), drafted=41, bias=True), tmp_path / "head")
        (whole,) = heads_of(convert_with(source, head_root, tmp_path / "one"))
        first, second = heads_of(convert_with(source, head_root, tmp_path / "two", mapping=ParallelMapping(2)))
        assert first.keys() == second.keys() == whole.keys()
        by_rows = {f"{LAYER}.mlp.fc.weight", f"{LAYER}.mlp.gate.weight", "eagle3.lm_head.weight"}
        by_columns = {f"{LAYER}.attention.dense.weight", f"{LAYER}.mlp.proj.weight"}
        for name, value in whole.items():
            if name in by_rows:
                joined = torch.cat([first[name], second[name]])[: len(value)]  # the vocabulary is padded
            elif name in by_columns:
                joined = torch.cat([first[name], second[name]], 1)
            elif ".qkv." in name:  # 4, 2 and 2 heads of 8 numbers each
                pairs = zip(first[name].split([16, 8, 8]), second[name].split([16, 8, 8]), strict=True)
                joined = torch.cat([rows for pair in pairs for rows in pair])
            else:
                assert torch.equal(first[name], second[name])
                joined = first[name]
            assert torch.equal(joined, value), name

    def test_config_json_describes_the_eagle3_net(self, source: Path, tmp_path: Path) -> None:
        rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}  # fmt: skip
        head_root = save_head(random_head((0, 4, 6), fc_norm=True), tmp_path / "head", rope_scaling=rope)
        config = config_of(convert_with(source, head_root, tmp_path / "out", mapping=ParallelMapping(2)))
        assert config["architecture"] == "LlamaForCausalLM"
        assert config["eagle3"] == {
            "aux_layers": [1, 5, 7], "norm_before_fc": False, "fc_norm": True, "norm_before_residual": False,
            "norm_output": False, "fc_bias": False, "own_embedding": False, "own_head": True, "maps_ids": True,
        }  # fmt: skip
        layer = config["eagle3_net_config"]
        assert (layer["vocab_size"], layer["num_hidden_layers"], layer["head_size"]) == (40, 1, 8)
        assert (layer["rotary_base"], layer["rotary_scaling"]["factor"]) == (5000.0, 4.0)
        assert layer["mapping"]["tp_size"] == 2

    def test_head_of_a_quantized_target_is_not_quantized(self, source: Path, tmp_path: Path) -> None:
        head = random_head((0, 4, 6))
        out = convert_with(source, save_head(head, tmp_path / "head"), tmp_path / "out", scheme=Scheme("fp8_rowwise"))
        (found,) = heads_of(out)
        assert torch.equal(found["eagle3.lm_head.weight"], head.tensors["lm_head.weight"])
        assert {value.dtype for value in found.values()} == {torch.bfloat16, torch.int64}
        assert config_of(out)["quantization"]["exclude_modules"] == ["lm_head", "eagle3.*"]

    def test_lm_head_tied_to_the_draft_embedding_is_converted(self, source: Path, tmp_path: Path) -> None:
        head = random_head((0, 4, 6), drafted=SHAPE["vocab_size"], own_embedding=True).changed(lm_head__weight=None)
        out = convert_with(source, save_head(head, tmp_path / "head", tie_word_embeddings=True), tmp_path / "out")
        (found,) = heads_of(out)
        assert torch.equal(found["eagle3.lm_head.weight"], head.tensors["embed_tokens.weight"])
        assert torch.equal(found["eagle3.vocab_embedding.weight"], head.tensors["embed_tokens.weight"])

    def test_head_narrower_than_its_target_requires_an_embedding(self, source: Path, tmp_path: Path) -> None:
        """It has its own embedding and LM head, and reads hidden states of another width than its own."""
        head = random_head((0, 4, 6), target={"hidden_size": 16}, own_embedding=True)
        head = head.changed(fc__weight=torch.ones((16, 3 * SHAPE["hidden_size"]), dtype=torch.bfloat16))
        head_root = save_head(head, tmp_path / "head", target_hidden_size=SHAPE["hidden_size"])
        assert not read(head_root, source).head.diagnostics
        bare = save_head(head.changed(embed_tokens__weight=None), tmp_path / "bare", target_hidden_size=32)
        with pytest.raises(CheckpointError, match=r"1 tensor does not add up:\n  embed_tokens.weight: missing"):
            read(bare, source)


class TestLayouts:
    LAYOUTS = ("original", "specforge", "modelopt", "module", "speculators")

    def test_all_layouts_convert_to_identical_files(self, source: Path, tmp_path: Path) -> None:
        head = random_head(AUX_OF_PAPER)
        outs = [
            convert_with(source, save_head(head, tmp_path / layout, layout), tmp_path / f"{layout}-out")
            for layout in self.LAYOUTS
        ]
        assert config_of(outs[0])["eagle3"]["aux_layers"] == [2, 3, 4]
        for out in outs[1:]:
            for name in ("config.json", "rank0.safetensors"):
                assert (out / name).read_bytes() == (outs[0] / name).read_bytes(), out

    @pytest.mark.parametrize(
        ("layers", "aux_layers"), [(6, None), (7, [2, 3, 4]), (32, [2, 16, 29]), (61, [2, 30, 58])], ids=str
    )
    def test_default_aux_layers_match_the_reference(
        self, layers: int, aux_layers: list[int] | None, tmp_path: Path
    ) -> None:
        """The inputs of layers 2, n // 2 and n - 3 (SafeAILab/EAGLE, modeling_llama_kv.py); 6 layers are too few."""
        source = make_llama(tmp_path / "hf", num_hidden_layers=layers, rope_parameters=ROPE)
        head_root = read(save_head(random_head(AUX_OF_PAPER), tmp_path / "head", "original"), source).head
        if aux_layers:
            assert head_root.config["eagle3"]["aux_layers"] == aux_layers
        else:
            (diagnostic,) = head_root.diagnostics
            assert diagnostic.code == "aux-layers"
            assert diagnostic.message == "the head reads the inputs of layers 2, 3, 3, but the target has 6 layers"

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")  # ModelOpt's deprecation warnings
    def test_modelopt_export_is_converted(self, source: Path, tmp_path: Path) -> None:
        """The exported config lists the chosen layers and uses YaRN scaling."""
        import modelopt.torch.speculative as mtsp
        from modelopt.torch.export import export_speculative_decoding
        from modelopt.torch.speculative.config import EAGLE3_DEFAULT_CFG

        shape = random_head(AUX_OF_PAPER).layer
        settings = copy.deepcopy(EAGLE3_DEFAULT_CFG["config"])
        settings["eagle_architecture_config"] |= shape | {"draft_vocab_size": shape["vocab_size"]}
        model = reference_model(source, "bfloat16")
        mtsp.convert(model, [("eagle", settings)])
        export_speculative_decoding(model, export_dir=tmp_path / "head")
        written = config_of(tmp_path / "head")
        out = convert_with(source, tmp_path / "head", tmp_path / "out")
        (found,) = heads_of(out)
        expected = stored(load_file(tmp_path / "head" / "model.safetensors"))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
        config = config_of(out)
        assert config["eagle3"]["aux_layers"] == [number + 1 for number in written["eagle_config"][AUX]] == [2, 3, 4]
        assert config["eagle3_net_config"]["rotary_scaling"]["factor"] == written["rope_scaling"]["factor"] == 32.0

    def test_modelopt_option_names_are_read(self, source: Path, tmp_path: Path) -> None:
        head = random_head((0, 4, 6), norm_before_fc=True)
        eagle = {AUX: [0, 4, 6], "norm_before_fc": True, "return_hidden_post_norm": True}
        head_root = save_head(head, tmp_path / "head", eagle_config=eagle, norm_before_fc=None)
        written = read(head_root, source).head.config["eagle3"]
        assert (written["norm_before_fc"], written["norm_output"]) == (True, True)


def read(head_root: Path, source: Path, **options: Any) -> SourceHead:
    return load_head(head_root, "eagle3", options, load_model(source, "auto"))


def without(*names: str) -> Callable[[], Eagle3Tensors]:
    return lambda: random_head((0, 4, 6)).changed(**{name.replace(".", "__"): None for name in names})


def with_others(**tensors: Tensor) -> Callable[[], Eagle3Tensors]:
    return lambda: random_head((0, 4, 6)).changed(**tensors)


WIDE = torch.zeros((4, 4), dtype=torch.bfloat16)
BAD: dict[str, tuple[Callable[[], Eagle3Tensors], dict[str, Any], str]] = {
    "eagle-1": (
        without("layers.0.hidden_norm.weight"),
        {},
        "/config.json: is an EAGLE-1 or EAGLE-2 head: its layer has no hidden_norm\nhint: use method: eagle",
    ),
    "another model": (
        without("layers.0.hidden_norm.weight", "fc.weight"),
        {},
        "/config.json: is not an EAGLE-3 head: midlayer.hidden_norm.weight is missing",
    ),
    "another speculators": (
        without(),
        {"speculators_model_type": "mtp"},
        "/config.json: speculators_model_type is 'mtp', expected 'eagle3'",
    ),
    "a net that drafts in parallel": (
        without(),
        {"speculators_model_type": "peagle"},
        "/config.json: describes a net that drafts in parallel",
    ),
    "two layers": (
        with_others(**{"layers.1.mlp.up_proj.weight": torch.zeros(4)}),
        {},
        "/config.json: has 2 layers; only EAGLE-3 heads of one layer are supported",
    ),
    "no number of layers": (
        without(),
        {"num_hidden_layers": 10**30},
        f"/config.json: num_hidden_layers is {10**30}, expected a positive number",
    ),
    "more drafted tokens than there are": (
        without(),
        {"draft_vocab_size": 65},
        "/config.json: draft_vocab_size is 65, expected a positive number of at most 64",
    ),
    "layers that are words": (
        without(),
        {"eagle_config": {AUX: ["low", "high"]}},
        f'/config.json: {AUX} is ["low", "high"], expected numbers of layers',
    ),
    "a section that is a list": (without(), {"eagle_config": [1]}, "/config.json: eagle_config is [1], expected"),
    "norms twice": (
        without(),
        {"norm_before_fc": True, "fc_norm": True},
        "/config.json: norm_before_fc and fc_norm are both true, but a head can have only one of them",
    ),
    "norms that are not there": (
        without(),
        {"norm_before_fc": True},
        ": 1 tensor does not add up:\n  input_norm.weight: missing",
    ),
    "a tensor is missing": (
        without("layers.0.self_attn.k_proj.weight", "d2t"),
        {},
        ": 2 tensors do not add up:\n  d2t: missing\n  midlayer.self_attn.k_proj.weight: missing",
    ),
    "no head for fewer tokens": (without("lm_head.weight"), {}, ": 1 tensor does not add up:\n  lm_head.weight: miss"),
    "something else": (with_others(eh_proj__weight=WIDE), {}, ": 1 tensor does not add up:\n  eh_proj.weight: no rule"),
    "another number of hidden states": (
        without(),
        {"eagle_config": {AUX: [0, 6]}},
        ": 1 tensor does not add up:\n  fc.weight: [32, 96] in model.safetensors, but [32, 64] according to config.",
    ),
    "ids that are no integers": (
        with_others(d2t=torch.zeros(40)),
        {},
        ": 1 tensor does not add up:\n  d2t: dtype F32 in model.safetensors; supported: I64",
    ),
}


@pytest.mark.parametrize(("head", "config", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_eagle3_head_is_rejected(
    head: Callable[[], Eagle3Tensors], config: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    head_root = save_head(head(), tmp_path / "head", **config)
    with pytest.raises(CheckpointError) as caught:
        read(head_root, source)
    assert str(caught.value).startswith(f"{head_root}{message}")


def ids(*, step: int = 1, first: int = 0) -> Tensor:
    """Return d2t for the 40 ids `first`, `first` + `step`, ..."""
    return torch.arange(40) * (step - 1) + first


MISFITS: dict[str, tuple[Callable[[], Eagle3Tensors], dict[str, Any], list[tuple[str, str]]]] = {
    "another model altogether": (
        lambda: random_head((0, 4, 9), target={"hidden_size": 16, "vocab_size": 80}),
        {},
        [
            ("hidden-size", "the head is for hidden states of 16, the target's have 32"),
            ("vocabulary", "the head is for 80 vocabulary entries, the target has 64"),
            ("aux-layers", "the head reads the inputs of layers 1, 5, 10, but the target has 7 layers"),
        ],
    ),
    "layers in disorder": (
        without(),
        {"eagle_config": {AUX: [4, 0, 6]}},
        [("aux-layers", "the head reads the inputs of layers 5, 1, 7, but the target has 7 layers")],
    ),
    "ids beyond the vocabulary": (with_others(d2t=ids(step=2)), {}, [("d2t", "d2t maps to the id 64, outside 0..63")]),
    "ids below 0": (with_others(d2t=ids(first=-1)), {}, [("d2t", "d2t maps to the id -1, outside 0..63")]),
    "ids that repeat": (with_others(d2t=-torch.arange(40)), {}, [("d2t", "d2t maps to ids that do not ascend")]),
    "t2d of another vocabulary": (
        with_others(t2d=torch.ones(80, dtype=torch.bool)),
        {},
        [("d2t", "t2d is BOOL [80], expected BOOL [64]")],
    ),
    "t2d of other ids": (
        with_others(d2t=ids(first=3), t2d=torch.arange(64) < 40),
        {},
        [("d2t", "t2d marks other ids than d2t maps to")],
    ),
}


@pytest.mark.parametrize(("head", "config", "expected"), MISFITS.values(), ids=MISFITS.keys())
def test_head_mismatches_are_all_reported(
    head: Callable[[], Eagle3Tensors],
    config: dict[str, Any],
    expected: list[tuple[str, str]],
    source: Path,
    tmp_path: Path,
) -> None:
    found = read(save_head(head(), tmp_path / "head", **config), source)
    assert [(diagnostic.code, diagnostic.message) for diagnostic in found.head.diagnostics] == expected
    with pytest.raises(CheckpointError, match="; ".join(message for _, message in expected).replace("[", r"\[")):
        found.check(ParallelMapping())


class TestOptions:
    def test_options_determine_the_draft_shape(self) -> None:
        def draft_shape(draft_len: int, **options: int) -> DraftShape:
            return METHOD.draft_shape(METHOD.parse(options), draft_len)

        assert draft_shape(5) == DraftShape(5, 5)
        assert draft_shape(5, top_k=4, nodes=20) == DraftShape(5, 20)
        assert draft_shape(2, top_k=2, nodes=20) == DraftShape(2, 6)  # 2 tokens, and 2 after each
        assert draft_shape(5, top_k=2, nodes=3) == DraftShape(3, 3)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"top_k": 4}, "a tree requires both top_k and nodes; set both, or none for a chain"),
            ({"nodes": 4}, "a tree requires both top_k and nodes; set both, or none for a chain"),
            ({"lossy": True}, "lossy acceptance requires a tree; set top_k and nodes"),
        ],
        ids=str,
    )
    def test_incomplete_tree_options_are_rejected(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(TrtspecError) as caught:
            METHOD.parse(options)
        assert str(caught.value) == f"speculation.options.nodes: {message}"

    def test_top_k_beyond_the_draft_vocabulary_is_reported(self, source: Path, tmp_path: Path) -> None:
        head_root = save_head(random_head((0, 4, 6), drafted=3), tmp_path / "head")
        assert not read(head_root, source, top_k=3, nodes=9).head.diagnostics
        (diagnostic,) = read(head_root, source, top_k=4, nodes=9).head.diagnostics
        assert diagnostic.message == "top_k is 4, but the head drafts only 3 different tokens"


@pytest.fixture
def eagle3(recipe: Path) -> Path:
    """The pair's recipe with a head instead of the draft model."""
    head = random_head((0, 2), target=TARGET_SHAPE | {"vocab_size": PAIR_VOCAB})
    save_head(head, recipe.parent / "head", rope_theta=10000.0)
    recipe.write_text(recipe.read_text().replace("draft_target", "eagle3").replace("./draft", "./head"))
    return recipe


class TestRecipes:
    def test_compatible_head_passes_check(self, eagle3: Path, trtspec: Run) -> None:
        assert trtspec("check", eagle3, "--json").document["problems"] == []

    @pytest.mark.parametrize(
        ("change", "path", "message"),
        [
            ("options.top_k=4", "options.nodes", "a tree requires both top_k and nodes; set both, or none"),
            ("options.depth=4", "options.depth", "eagle3 has no option 'depth' (lossy, posterior_threshold,"),
            ("draft_len=17", "draft_len", "eagle3 takes 1..16 draft tokens"),
        ],
    )
    def test_invalid_options_are_reported_by_check(
        self, change: str, path: str, message: str, eagle3: Path, trtspec: Run
    ) -> None:
        (problem,) = problems_of(trtspec, eagle3, "--set", f"speculation.{change}")
        assert problem["path"] == f"speculation.{path}"
        assert problem["message"].startswith(message)

    def test_incompatible_head_is_reported_by_check(self, eagle3: Path, trtspec: Run) -> None:
        save_head(random_head((0, 1)), eagle3.parent / "other", rope_theta=10000.0)
        problems = problems_of(trtspec, eagle3, "--set", "speculation.draft.model=./other")
        assert [problem["code"] for problem in problems] == ["hidden-size", "vocabulary"]
        assert {problem["path"] for problem in problems} == {"speculation.draft.model"}
