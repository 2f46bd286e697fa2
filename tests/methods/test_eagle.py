# SPDX-License-Identifier: Apache-2.0
"""Conversion of EAGLE heads into the target's checkpoint: reading, error messages, and NVIDIA's format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama
from tests.conftest import Run
from tests.methods.eagle_heads import BLOCK, HIDDEN, ROPE, VOCAB, Tensors, convert_with, random_head, save_head
from tests.planning.check.finding import problems_of
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_head import SourceHead, load_head

METHOD = find_method("eagle")
TREE: dict[str, Any] = {"choices": [[0], [1], [0, 0], [1, 0], [1, 1], [1, 0, 0]]}
ODD = VOCAB - 1


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an odd vocabulary size."""
    return make_llama(tmp_path_factory.mktemp("hf"), vocab_size=ODD, rope_parameters=ROPE)


def heads_of(root: Path) -> list[Tensors]:
    """Return the heads' tensors in a converted checkpoint, by rank."""
    files = sorted(root.glob("rank*.safetensors"))
    return [{name: value for name, value in load_file(file).items() if "eagle" in name} for file in files]


# {name in the checkpoint: stacked names in the source, and the dimension that is sharded}
# (NVIDIA/TensorRT-LLM, tensorrt_llm/models/eagle/model.py and models/llama/model.py)
STORED: dict[str, tuple[tuple[str, ...], int | None]] = {
    "fc.weight": (("fc.weight",), 0),
    "fc.bias": (("fc.bias",), 0),
    "vocab_embedding.weight": (("embed_tokens.weight",), 0),
    "layers.0.attention.dense.weight": ((f"{BLOCK}.self_attn.o_proj.weight",), 1),
    "layers.0.post_layernorm.weight": ((f"{BLOCK}.post_attention_layernorm.weight",), None),
    "layers.0.mlp.fc.weight": ((f"{BLOCK}.mlp.gate_proj.weight",), 0),
    "layers.0.mlp.gate.weight": ((f"{BLOCK}.mlp.up_proj.weight",), 0),
    "layers.0.mlp.proj.weight": ((f"{BLOCK}.mlp.down_proj.weight",), 1),
}


class TestConversion:
    @pytest.mark.parametrize("tensor", [1, 2])
    @pytest.mark.parametrize("own", [True, False], ids=["own embedding and bias", "without"])
    def test_converted_ranks_concatenate_to_the_source(
        self, own: bool, tensor: int, source: Path, tmp_path: Path
    ) -> None:
        tensors = random_head(bias=own)
        if own:
            tensors["embed_tokens.weight"] = torch.randn(ODD, HIDDEN).bfloat16()
        head_root = save_head(tmp_path / "head", tensors, vocab=ODD)
        ranks = heads_of(convert_with(source, head_root, tmp_path / "out", TREE, mapping=ParallelMapping(tensor)))
        target = load_file(source / "model.safetensors")
        absent = {"fc.bias": torch.zeros(HIDDEN).bfloat16(), "embed_tokens.weight": target["model.embed_tokens.weight"]}
        assert len(ranks) == tensor
        for level in range(3):
            own_names = {f"drafter.{name}" for name in (*STORED, "layers.0.attention.qkv.weight")}
            wanted = {f"eagle_nets.{level}.{name}" for name in {"lm_head.weight", *own_names}}
            for rank in ranks:
                assert {name for name in rank if name.startswith(f"eagle_nets.{level}.")} == wanted
            for name, (sources, dimension) in STORED.items():
                parts = [rank[f"eagle_nets.{level}.drafter.{name}"] for rank in ranks]
                whole = parts[0] if dimension is None else torch.cat(parts, dimension)
                expected = torch.cat([(absent | tensors)[each] for each in sources])
                assert torch.equal(whole[: len(expected)], expected), name  # a sharded vocabulary is padded
            heads = torch.cat([rank[f"eagle_nets.{level}.lm_head.weight"] for rank in ranks])
            assert torch.equal(heads[:ODD], target["lm_head.weight"])
        assert all(name.startswith(("eagle_nets.0.", "eagle_nets.1.", "eagle_nets.2.")) for name in ranks[0])

    def test_query_heads_are_split_and_the_single_key_head_is_replicated(self, source: Path, tmp_path: Path) -> None:
        tensors = random_head()
        head_root = save_head(tmp_path / "head", tensors, vocab=ODD)
        ranks = heads_of(convert_with(source, head_root, tmp_path / "out", TREE, mapping=ParallelMapping(2)))
        query, key, value = (tensors[f"{BLOCK}.self_attn.{name}_proj.weight"] for name in "qkv")
        for rank, own in zip(ranks, query.chunk(2), strict=True):
            assert torch.equal(rank["eagle_nets.1.drafter.layers.0.attention.qkv.weight"], torch.cat([own, key, value]))

    def test_config_json_describes_the_eagle_net(self, source: Path, tmp_path: Path) -> None:
        head_root = save_head(tmp_path / "head", random_head(), vocab=ODD, max_position_embeddings=64)
        out = convert_with(source, head_root, tmp_path / "out", TREE, mapping=ParallelMapping(2))
        config = json.loads((out / "config.json").read_text())
        assert config["architecture"] == "EagleForCausalLM"
        assert (config["num_eagle_layers"], config["max_non_leaves_per_layer"], config["max_draft_len"]) == (3, 2, 6)
        head = config["eagle_net_config"]
        assert head["mapping"] == config["mapping"]
        assert head["mapping"]["tp_size"] == 2
        expected = {
            "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "logits_dtype": "float32", "vocab_size": ODD,
            "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_size": HIDDEN // 2, "intermediate_size": 24, "hidden_act": "silu", "norm_epsilon": 1e-5,
            "max_position_embeddings": 64, "position_embedding_type": "rope_gpt_neox", "rotary_base": 5000.0,
            "rotary_scaling": None, "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        }  # fmt: skip
        assert {key: head[key] for key in expected} == expected

    def test_dynamic_tree_has_one_head_per_level(self, source: Path, tmp_path: Path) -> None:
        head_root = save_head(tmp_path / "head", random_head(), vocab=ODD)
        out = convert_with(source, head_root, tmp_path / "out", {"dynamic": True, "top_k": 4, "depth": 2, "nodes": 99})
        config = json.loads((out / "config.json").read_text())
        assert (config["num_eagle_layers"], config["max_non_leaves_per_layer"], config["max_draft_len"]) == (2, 4, 20)

    def test_heads_of_a_quantized_target_are_not_quantized(self, source: Path, tmp_path: Path) -> None:
        head_root = save_head(tmp_path / "head", random_head(), vocab=ODD)
        out = convert_with(source, head_root, tmp_path / "out", TREE, scheme=Scheme("fp8_rowwise"))
        (head,) = heads_of(out)
        assert {value.dtype for value in head.values()} == {torch.bfloat16}
        quantization = json.loads((out / "config.json").read_text())["quantization"]
        assert quantization["exclude_modules"] == ["lm_head", "*eagle_nets*"]

    def test_tied_target_embedding_is_used_as_lm_head(self, tmp_path: Path) -> None:
        tied = make_llama(tmp_path / "hf", tie_word_embeddings=True)
        head_root = save_head(tmp_path / "head", random_head())
        (head,) = heads_of(convert_with(tied, head_root, tmp_path / "out", TREE))
        embedding = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(head["eagle_nets.2.lm_head.weight"], embedding)

    def test_attention_biases_are_converted(self, source: Path, tmp_path: Path) -> None:
        """Heads for Qwen2 have such biases."""
        biases = {f"{BLOCK}.self_attn.{name}_proj.bias": torch.randn(size).bfloat16()
                  for name, size in (("q", HIDDEN), ("k", HIDDEN // 2), ("v", HIDDEN // 2))}  # fmt: skip
        head_root = save_head(tmp_path / "head", random_head() | biases, vocab=ODD)
        (head,) = heads_of(convert_with(source, head_root, tmp_path / "out", TREE))
        stored = head["eagle_nets.0.drafter.layers.0.attention.qkv.bias"]
        assert torch.equal(stored, torch.cat(list(biases.values())))


def read(head_root: Path, source: Path, **options: Any) -> SourceHead:
    return load_head(head_root, "eagle", options, load_model(source, "auto"))


def without(*names: str) -> Tensors:
    return {name: value for name, value in random_head().items() if name not in names}


BAD: dict[str, tuple[Callable[[], Tensors], dict[str, Any], str]] = {
    "another model": (
        lambda: {"model.norm.weight": torch.zeros(4)},
        {},
        "/config.json: is not an EAGLE head: the tensor fc.weight is missing",
    ),
    "an EAGLE-3 head": (
        lambda: random_head() | {"midlayer.hidden_norm.weight": torch.zeros(4)},
        {},
        "/config.json: describes an EAGLE-3 head, which reads other hidden states\nhint: use method: eagle3",
    ),
    "a size that is a word": (without, {"hidden_size": "x"}, "/config.json: hidden_size is 'x', expected int"),
    "no size": (without, {"hidden_size": None}, "/config.json: lacks 'hidden_size'"),
    "heads that do not divide": (without, {"num_attention_heads": 3}, "/config.json: hidden_size 32 is not a multiple"),
    "another activation": (without, {"hidden_act": "gelu"}, "/config.json: hidden_act 'gelu' is not supported"),
    "rotations of no kind": (
        without,
        {"rope_scaling": {"rope_type": "spiral"}},
        "/config.json: rope type 'spiral' is not supported",
    ),
    "a tensor is missing": (
        lambda: without(f"{BLOCK}.mlp.up_proj.weight"),
        {},
        f": 1 tensor does not add up:\n  {BLOCK}.mlp.up_proj.weight: missing",
    ),
    "another shape": (
        lambda: without() | {"fc.weight": torch.zeros(4, 4)},
        {},
        ": 1 tensor does not add up:\n  fc.weight: [4, 4] in model.safetensors, but [32, 64] according to config.json",
    ),
    "several layers": (
        lambda: without() | {"layers.1.mlp.up_proj.weight": torch.zeros(4)},
        {},
        "/config.json: has 2 layers; only EAGLE heads of one layer are supported",
    ),
    "something else": (
        lambda: without() | {"layers.0.mlp.other.weight": torch.zeros(4)},
        {},
        ": 1 tensor does not add up:\n  layers.0.mlp.other.weight: no rule uses it",
    ),
}


@pytest.mark.parametrize(("tensors", "config", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_eagle_head_is_rejected(
    tensors: Callable[[], Tensors], config: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    head_root = save_head(tmp_path / "head", tensors(), **{"vocab": ODD} | config)
    with pytest.raises(CheckpointError) as caught:
        read(head_root, source, **TREE)
    assert str(caught.value).startswith(f"{head_root}{message}")


@pytest.mark.parametrize("architectures", [None, [], ["EagleLlamaForCausalLM"], "Llama", [3]])
def test_architectures_field_of_a_head_is_ignored(architectures: Any, source: Path, tmp_path: Path) -> None:
    head_root = save_head(tmp_path / "head", random_head(), vocab=ODD, architectures=architectures)
    assert not read(head_root, source).head.diagnostics


def test_unused_input_norm_is_skipped(source: Path, tmp_path: Path) -> None:
    name = f"{BLOCK}.input_layernorm.weight"
    head_root = save_head(tmp_path / "head", random_head() | {name: torch.ones(HIDDEN)}, vocab=ODD)
    assert read(head_root, source).matched.skipped == {name: "the layer has no input norm"}


def test_head_for_another_model_is_rejected_with_all_mismatches(source: Path, tmp_path: Path) -> None:
    head_root = save_head(tmp_path / "head", random_head(HIDDEN // 2), hidden=HIDDEN // 2)
    assert [(diagnostic.code, diagnostic.message) for diagnostic in read(head_root, source).head.diagnostics] == [
        ("hidden-size", "the head is for hidden states of 16, the target's have 32"),
        ("vocabulary", "the head is for 64 vocabulary entries, the target has 63"),
    ]
    with pytest.raises(CheckpointError, match=r"hidden states of 16, .*; the head is for 64 vocabulary entries"):
        convert_with(source, head_root, tmp_path / "out", TREE)


def test_head_parameters_are_counted_once(source: Path, tmp_path: Path) -> None:
    tensors = random_head(bias=True)
    head_root = read(save_head(tmp_path / "head", tensors, vocab=ODD), source)
    assert head_root.head.num_parameters == sum(tensor.numel() for tensor in tensors.values())


class TestOptions:
    def test_default_tree_is_the_reference_tree(self) -> None:
        """The reference calls it mc_sim_7b_63; it has 25 nodes (SafeAILab/EAGLE, eagle/model/choices.py)."""
        options = METHOD.parse({})
        assert METHOD.draft_shape(options, 0) == DraftShape(5, 25)
        assert METHOD.parse({"choices": "mc_sim_7b_63"}) == options

    def test_default_dynamic_tree_is_the_reference_tree(self) -> None:
        """SafeAILab/EAGLE, eagle/model/ea_model.py: total_token 60 with the root, depth 7 below the first level."""
        assert METHOD.draft_shape(METHOD.parse({"dynamic": True}), 0) == DraftShape(8, 59)

    def test_dynamic_tree_nodes_are_limited_by_the_ranked_candidates(self) -> None:
        options = METHOD.parse({"dynamic": True, "top_k": 2, "depth": 3, "nodes": 200})
        assert METHOD.draft_shape(options, 0) == DraftShape(3, 2 + 4 + 4)

    @pytest.mark.parametrize("written", [{}, {"choices": [[0]]}, {"dynamic": True}, {"dynamic": True, "nodes": 7}])
    def test_options_round_trip_through_json(self, written: dict[str, Any]) -> None:
        options = METHOD.parse(written)
        assert METHOD.parse(json.loads(options.model_dump_json())) == options

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ({"choices": [[0], [1, 0]]}, "choices: [1, 0] needs [1], which is missing"),
            ({"choices": "vicuna_7b_stage2"}, "choices: unknown tree 'vicuna_7b_stage2'; known: mc_sim_7b_63"),
            ({"dynamic": True, "choices": "mc_sim_7b_63"}, "choices: choices requires a static tree"),
            ({"top_k": 4}, "top_k: top_k requires a dynamic tree"),
            ({"dynamic": False, "depth": 4}, "depth: depth requires a dynamic tree"),
            ({"dynamic": True, "nodes": 0}, "nodes: must be at least 1"),
            ({"dynamic": "yes", "top_k": 4}, "dynamic: expected a boolean"),
        ],
    )
    def test_invalid_options_are_rejected_with_their_position(self, written: dict[str, Any], message: str) -> None:
        with pytest.raises(TrtspecError) as caught:
            METHOD.parse(written)
        assert str(caught.value) == f"speculation.options.{message}"


@pytest.fixture
def eagle(recipe: Path) -> Path:
    """The pair's recipe with a head instead of the draft model."""
    hidden = TARGET_SHAPE["hidden_size"]
    save_head(recipe.parent / "head", random_head(hidden), hidden=hidden, vocab=PAIR_VOCAB, rope_theta=10000.0)
    text = recipe.read_text().replace("draft_target\n  draft_len: 3", "eagle").replace("./draft", "./head")
    recipe.write_text(text)
    return recipe


class TestRecipes:
    def test_compatible_head_passes_check(self, eagle: Path, trtspec: Run) -> None:
        assert trtspec("check", eagle, "--json").document["problems"] == []

    @pytest.mark.parametrize(
        ("option", "path", "message"),
        [
            ("choices=[[262]]", "choices", "rank 262 is beyond the target's 262 vocabulary entries"),
            ("nodes=7", "nodes", "nodes requires a dynamic tree"),
            ("choice=mc_sim_7b_63", "choice", "eagle has no option 'choice' (lossy, posterior_threshold,"),
            ("lossy=true", "lossy", "lossy acceptance changes the output, but gates.lossless is true"),
        ],
    )
    def test_invalid_options_are_reported_by_check(
        self, option: str, path: str, message: str, eagle: Path, trtspec: Run
    ) -> None:
        (problem,) = problems_of(trtspec, eagle, "--set", f"speculation.options.{option}")
        assert problem["path"] == f"speculation.options.{path}"
        assert problem["message"].startswith(message)

    def test_top_k_beyond_the_vocabulary_is_reported(self, recipe: Path, trtspec: Run) -> None:
        root = recipe.parent
        make_llama(root / "target", vocab_size=40, **TARGET_SHAPE)
        hidden = TARGET_SHAPE["hidden_size"]
        save_head(root / "head", random_head(hidden), hidden=hidden, vocab=40)
        asked = {"dynamic": True, "top_k": 41}
        target = load_model(root / "target", "auto")
        (diagnostic,) = METHOD.check_options(METHOD.parse(asked), target.config)
        assert (diagnostic.path, diagnostic.message) == ("top_k", "41 is more than the target's 40 vocabulary entries")

    def test_incompatible_head_is_reported_by_check(self, eagle: Path, trtspec: Run) -> None:
        config = eagle.parent / "head" / "config.json"
        config.write_text(config.read_text().replace(f'"vocab_size": {PAIR_VOCAB}', '"vocab_size": 40'))
        (problem,) = problems_of(trtspec, eagle)
        assert (problem["path"], problem["code"]) == ("speculation.draft.model", "vocabulary")
        assert problem["message"] == f"the head is for 40 vocabulary entries, the target has {PAIR_VOCAB}"

    @pytest.mark.slow
    def test_head_with_other_positions_causes_warnings_but_builds(self, eagle: Path, trtspec: Run) -> None:
        config = eagle.parent / "head" / "config.json"
        written = json.loads(config.read_text()) | {"rope_theta": 5000.0, "max_position_embeddings": 64}
        config.write_text(json.dumps(written))
        checked = trtspec("check", eagle, "--json")
        assert (checked.code, checked.document["ok"]) == (0, True)
        assert [
            (each["severity"], each["code"], each["path"], each["message"]) for each in checked.document["problems"]
        ] == [
            (
                "note",
                "rope",
                "speculation.draft.model",
                "the head's rotary embedding has base 5000, the target's base 10000",
            ),
            (
                "warning",
                "positions",
                "speculation.draft.model",
                "the head has 64 positions, but texts may have 256 tokens",
            ),
        ]
        shown = trtspec("check", eagle).out
        assert "  note: the head's rotary embedding has base 5000" in shown
        assert "  warning: the head has 64 positions" in shown
        short = trtspec("check", eagle, "--set", "engine.max_seq_len=64", "--set", "engine.max_input_len=32", "--json")
        assert [each["code"] for each in short.document["problems"]] == ["rope"]
        assert trtspec("build", eagle).code == 0

    @pytest.mark.slow
    def test_pinned_pickle_head_is_built(self, eagle: Path, trtspec: Run) -> None:
        """Most heads are published this way: pytorch_model.bin and config.json."""
        root = eagle.parent / "head"
        torch.save(load_file(root / "model.safetensors"), root / "pytorch_model.bin")
        (root / "model.safetensors").unlink()
        digest = hashlib.sha256((root / "pytorch_model.bin").read_bytes()).hexdigest()
        pin = f"allow_pickle: true\n    sha256: {{pytorch_model.bin: {digest}}}"
        eagle.write_text(eagle.read_text().replace("./head", f"./head\n    {pin}"))
        grown = ("--set", "speculation.options={dynamic: true, nodes: 12}")
        assert trtspec("build", eagle, *grown).code == 0
        artifact = eagle.parent / "build" / "tiny"
        generated = trtspec("generate", artifact, "-p", "the", "--max-tokens", "12", "--json").document
        assert generated["new_tokens"] == 12
        assert generated["drafted"] > 12 * 5
