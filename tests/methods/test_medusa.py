# SPDX-License-Identifier: Apache-2.0
"""Conversion of Medusa heads into the target's checkpoint: reading, error messages, and NVIDIA's format."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.manifests import read_manifest, write_manifest
from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE, make_llama
from tests.checkpoints.quant import modelopt
from tests.conftest import Run
from tests.methods.draft_formats.medusa_nets import by_vllms_names
from tests.methods.heads import HIDDEN, VOCAB, Tensors, convert_with, random_heads, save_heads
from tests.planning.check.finding import problems_of
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_head import SourceHead, load_head
from trtspec.methods.tree_choices import MEDUSA_CHOICES

METHOD = find_method("medusa")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an odd vocabulary size."""
    return make_llama(tmp_path_factory.mktemp("hf"), vocab_size=VOCAB - 1)


def heads_of(root: Path) -> list[Tensors]:
    """Return the heads' tensors in a converted checkpoint, by rank."""
    files = sorted(root.glob("rank*.safetensors"))
    return [{name: value for name, value in load_file(file).items() if "medusa" in name} for file in files]


def stored_names(head: int, num_layers: int) -> dict[str, str]:
    """Return {name in the source: name in the checkpoint} of a head's tensors (NVIDIA/TensorRT-LLM, models/medusa)."""
    names = {f"{head}.{num_layers}.weight": f"medusa_heads.{head}.lm_head.weight"}
    for layer in range(num_layers):
        for kind in ("weight", "bias"):
            name = f"medusa_heads.{head}.medusa_layers.{layer}.linear.{kind}"
            names[f"{head}.{layer}.linear.{kind}"] = name
    return names


class TestConversion:
    @pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_heads."])
    @pytest.mark.parametrize("num_layers", [0, 1, 2])
    @pytest.mark.parametrize("tensor", [1, 2])
    def test_converted_ranks_concatenate_to_the_source(
        self, prefix: str, num_layers: int, tensor: int, source: Path, tmp_path: Path
    ) -> None:
        tensors = random_heads(4, num_layers, vocab=VOCAB - 1)
        head_root = save_heads(tmp_path / "heads", tensors, prefix)
        ranks = heads_of(convert_with(source, head_root, tmp_path / "out", mapping=ParallelMapping(tensor)))
        names = {ours: theirs for head in range(4) for theirs, ours in stored_names(head, num_layers).items()}
        assert len(ranks) == tensor
        for rank in ranks:
            assert rank.keys() == names.keys()
        for ours, theirs in names.items():
            joined = torch.cat([rank[ours] for rank in ranks])
            assert len(joined) == -(-len(tensors[theirs]) // tensor) * tensor  # the vocabulary is padded
            assert torch.equal(joined[: len(tensors[theirs])], tensors[theirs])

    def test_vllm_tensor_names_are_read(self, source: Path, tmp_path: Path) -> None:
        """Blocks without a bias get zeros, and a matrix shared by all heads is stored with each head."""
        tensors = random_heads(4, vocab=VOCAB - 1)
        blocks = {name: value for name, value in tensors.items() if name.endswith("linear.weight")}
        named = by_vllms_names(blocks) | {"lm_head.weight": tensors["0.1.weight"]}
        heads = save_heads(tmp_path / "heads", named, original_lm_head=True)
        assert read(heads, source).head.num_parameters == 4 * HIDDEN * HIDDEN + (VOCAB - 1) * HIDDEN
        (ours,) = heads_of(convert_with(source, heads, tmp_path / "out"))
        for theirs, name in ((theirs, name) for head in range(4) for theirs, name in stored_names(head, 1).items()):
            expected = tensors[theirs if "linear" in theirs else "0.1.weight"]
            assert torch.equal(ours[name], torch.zeros_like(expected) if name.endswith("bias") else expected)

    def test_heads_without_lm_head_are_rejected_with_a_hint(self, source: Path, tmp_path: Path) -> None:
        blocks = {name: value for name, value in random_heads().items() if "linear" in name}
        (found,) = read(save_heads(tmp_path / "heads", blocks), source).head.diagnostics
        assert found.message == "the heads use the target's LM head, which is not among their tensors"
        assert found.hint == "convert them to vLLM's format, which includes it: trtspec convert-draft with --target"

    def test_config_json_describes_the_medusa_heads(self, source: Path, tmp_path: Path) -> None:
        """The source's config.json has 2 heads, like published configs of 5 heads."""
        head_root = save_heads(tmp_path / "heads", random_heads(5, 2, vocab=VOCAB - 1), medusa_num_layers=2)
        out = convert_with(source, head_root, tmp_path / "out", [[0], [0, 0], [1]])
        config = json.loads((out / "config.json").read_text())
        assert config["architecture"] == "MedusaForCausalLM"
        assert config["base_architecture"] == "LlamaForCausalLM"
        assert config["model_type"] == "llama"
        assert (config["num_medusa_heads"], config["num_medusa_layers"], config["max_draft_len"]) == (5, 2, 3)

    def test_heads_of_a_quantized_target_are_not_quantized(self, source: Path, tmp_path: Path) -> None:
        tensors = random_heads(4, vocab=VOCAB - 1)
        head_root = save_heads(tmp_path / "heads", tensors)
        out = convert_with(source, head_root, tmp_path / "out", scheme=Scheme("fp8_rowwise"))
        (heads,) = heads_of(out)
        assert torch.equal(heads["medusa_heads.3.lm_head.weight"], tensors["3.1.weight"])
        assert {value.dtype for value in heads.values()} == {torch.bfloat16}
        quantization = json.loads((out / "config.json").read_text())["quantization"]
        assert quantization["exclude_modules"] == ["lm_head", "*medusa_heads*"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ModelOpt's deprecation warnings
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_conversion_equals_the_modelopt_export(architecture: str, tensor: int, tmp_path: Path) -> None:
    """The heads come from the Hugging Face checkpoint of the same exporter, which also contains the base model."""
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.export import export_hf_checkpoint

    case = modelopt.random_case(architecture, tensor, 1)
    model = modelopt.make_model(case)
    source = modelopt.save_source(copy.deepcopy(model), tmp_path / "hf")
    mtsp.convert(model, [("medusa", {"medusa_num_heads": 4, "medusa_num_layers": 2})])
    for name, parameter in model.named_parameters():
        if "medusa_heads" in name:
            parameter.data.normal_()
    export_hf_checkpoint(copy.deepcopy(model), export_dir=tmp_path / "heads")
    modelopt.export(model, case, tmp_path / "theirs")
    ours = convert_with(
        source, tmp_path / "heads", tmp_path / "ours", dtype=case.dtype, mapping=ParallelMapping(tensor)
    )
    for our_rank, their_rank in zip(heads_of(ours), heads_of(tmp_path / "theirs"), strict=True):
        assert our_rank.keys() == their_rank.keys()
        for name, value in their_rank.items():
            assert torch.equal(our_rank[name], value), name
    found, expected = (json.loads((root / "config.json").read_text()) for root in (ours, tmp_path / "theirs"))
    for key in ("architecture", "base_architecture", "max_draft_len", "num_medusa_heads", "num_medusa_layers"):
        assert found[key] == expected[key], key
    assert found["model_type"] == {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}[architecture]


def read(head_root: Path, source: Path, **options: Any) -> SourceHead:
    return load_head(head_root, "medusa", options, load_model(source, "auto"))


def without(*names: str) -> Tensors:
    return {name: value for name, value in random_heads(4, vocab=VOCAB - 1).items() if name not in names}


WIDE = torch.zeros(4, 4, dtype=torch.bfloat16)
BAD: dict[str, tuple[Callable[[], Tensors], dict[str, Any], str]] = {
    "another model": (
        lambda: {"model.norm.weight": WIDE},
        {},
        "/config.json: does not contain Medusa heads: tensors like 0.0.linear.weight are missing",
    ),
    "two prefixes": (
        lambda: random_heads() | {"medusa_head.0.0.linear.weight": WIDE},
        {},
        "/config.json: has Medusa heads under two prefixes",
    ),
    "no first matrix": (
        lambda: without("0.1.weight"),
        {},
        "/config.json: 0.1.weight, the first head's vocabulary matrix, is missing",
    ),
    "flat first matrix": (
        lambda: without() | {"0.1.weight": torch.zeros(4)},
        {},
        "/config.json: 0.1.weight, the first head's vocabulary matrix, is missing",
    ),
    "another number of layers": (
        without,
        {"medusa_num_layers": 3},
        "/config.json: has 3 layers per head, but the tensors have 1",
    ),
    "modelopt's number of layers": (
        without,
        {"medusa": {"num_medusa_heads": 4, "num_medusa_layers": 2}},
        "/config.json: has 2 layers per head, but the tensors have 1",
    ),
    "a number that is a word": (
        without,
        {"medusa_num_layers": "one"},
        "/config.json: medusa_num_layers is 'one', expected int",
    ),
    "a section that is a list": (without, {"medusa": [4]}, "/config.json: medusa is [4], expected a mapping"),
    "a tensor is missing": (
        lambda: without("2.0.linear.bias"),
        {},
        ": 1 tensor does not add up:\n  2.0.linear.bias: missing",
    ),
    "another shape": (
        lambda: without() | {"3.0.linear.weight": WIDE},
        {},
        ": 1 tensor does not add up:\n"
        "  3.0.linear.weight: [4, 4] in medusa_lm_head.safetensors, but [32, 32] according to config.json",
    ),
    "a head is missing": (
        lambda: without("1.0.linear.weight", "1.0.linear.bias", "1.1.weight"),
        {},
        ": 3 tensors do not add up:\n  1.0.linear.bias: missing\n  1.0.linear.weight: missing\n  1.1.weight: missing",
    ),
    "something else": (
        lambda: without() | {"extra.weight": WIDE},
        {},
        ": 1 tensor does not add up:\n  extra.weight: no rule uses it",
    ),
}


@pytest.mark.parametrize(("tensors", "config", "message"), BAD.values(), ids=BAD.keys())
def test_invalid_medusa_heads_are_rejected(
    tensors: Callable[[], Tensors], config: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    head_root = save_heads(tmp_path / "heads", tensors(), **config)
    with pytest.raises(CheckpointError) as caught:
        read(head_root, source)
    assert str(caught.value).startswith(f"{head_root}{message}")


def test_heads_for_another_model_are_rejected_with_all_mismatches(source: Path, tmp_path: Path) -> None:
    head_root = save_heads(tmp_path / "heads", random_heads(3, hidden=HIDDEN // 2, vocab=VOCAB))
    misfits = read(head_root, source).head.diagnostics
    assert [(diagnostic.code, diagnostic.message) for diagnostic in misfits] == [
        ("hidden-size", "the heads are for hidden states of 16, the target's have 32"),
        ("vocabulary", "the heads are for 64 vocabulary entries, the target has 63"),
        ("heads", "the choices are 4 tokens deep, but there are 3 heads"),
    ]
    with pytest.raises(
        CheckpointError, match=r"hidden states of 16, .*; the heads are for 64 .*; the choices are 4 tokens"
    ):
        convert_with(source, head_root, tmp_path / "out")


def test_shallower_tree_requires_fewer_heads(source: Path, tmp_path: Path) -> None:
    head_root = save_heads(tmp_path / "heads", random_heads(1, vocab=VOCAB - 1))
    assert not read(head_root, source, choices=[[0], [1]]).head.diagnostics
    (diagnostic,) = read(head_root, source, choices=[[0], [0, 0]]).head.diagnostics
    assert diagnostic.hint == "list choices with a depth of at most 1"


def test_head_parameters_are_counted(source: Path, tmp_path: Path) -> None:
    head_root = read(save_heads(tmp_path / "heads", random_heads(4, 2, vocab=VOCAB - 1)), source)
    assert head_root.head.num_parameters == 4 * (2 * (HIDDEN * HIDDEN + HIDDEN) + (VOCAB - 1) * HIDDEN)


class TestOptions:
    def test_choices_determine_the_draft_shape(self) -> None:
        assert METHOD.draft_shape(METHOD.parse({}), 0) == DraftShape(4, 63)
        assert METHOD.draft_shape(METHOD.parse({"choices": [[0], [0, 0], [3]]}), 0) == DraftShape(2, 3)

    @pytest.mark.parametrize("name", MEDUSA_CHOICES)
    def test_every_published_tree_is_accepted_by_name(self, name: str) -> None:
        assert METHOD.draft_shape(METHOD.parse({"choices": name}), 0).max_tokens == 63

    def test_invalid_choices_are_rejected_with_their_position(self) -> None:
        with pytest.raises(TrtspecError) as caught:
            METHOD.parse({"choices": [[0], [1, 0]]})
        assert str(caught.value) == "speculation.options.choices: [1, 0] needs [1], which is missing"


@pytest.fixture
def medusa(recipe: Path) -> Path:
    """The pair's recipe with heads instead of the draft model."""
    save_heads(recipe.parent / "heads", random_heads(hidden=TARGET_SHAPE["hidden_size"], vocab=PAIR_VOCAB))
    text = recipe.read_text().replace("draft_target\n  draft_len: 3", "medusa").replace("./draft", "./heads")
    recipe.write_text(text)
    return recipe


class TestRecipes:
    def test_compatible_heads_pass_check(self, medusa: Path, trtspec: Run) -> None:
        assert trtspec("check", medusa, "--json").document["problems"] == []

    @pytest.mark.parametrize(
        ("option", "path", "message"),
        [
            ("choices=zephyr", "choices", "unknown tree 'zephyr'; known: mc_sim_7b_63, vicuna_7b_stage2"),
            ("choices=[[0],[0]]", "choices", "[0] is listed twice"),
            ("choices=[[262]]", "choices", "rank 262 is beyond the target's 262 vocabulary entries"),
            ("choice=zephyr_stage2", "choice", "medusa has no option 'choice' (lossy, posterior_threshold,"),
            ("lossy=true", "lossy", "lossy acceptance changes the output, but gates.lossless is true"),
        ],
    )
    def test_invalid_options_are_reported_by_check(
        self, option: str, path: str, message: str, medusa: Path, trtspec: Run
    ) -> None:
        (problem,) = problems_of(trtspec, medusa, "--set", f"speculation.options.{option}")
        assert problem["path"] == f"speculation.options.{path}"
        assert problem["message"].startswith(message)

    def test_incompatible_heads_are_reported_by_check(self, medusa: Path, trtspec: Run) -> None:
        chain = [[0] * depth for depth in range(1, 6)]
        (problem,) = problems_of(trtspec, medusa, "--set", f"speculation.options.choices={json.dumps(chain)}")
        assert (problem["path"], problem["code"]) == ("speculation.draft.model", "heads")
        assert problem["message"] == "the choices are 5 tokens deep, but there are 4 heads"

    def test_draft_len_is_rejected(self, medusa: Path, trtspec: Run) -> None:
        (problem,) = problems_of(trtspec, medusa, "--set", "speculation.draft_len=4")
        assert problem["message"] == "medusa does not use draft_len; its options determine the length"

    @pytest.mark.slow
    def test_pinned_pickle_heads_are_built(self, medusa: Path, trtspec: Run) -> None:
        """Most heads are published this way: medusa_lm_head.pt and config.json."""
        root = medusa.parent / "heads"
        tensors = load_file(root / "medusa_lm_head.safetensors")
        (root / "medusa_lm_head.safetensors").unlink()
        torch.save(tensors, root / "medusa_lm_head.pt")
        assert "medusa_lm_head.pt is a pickle, and pickles are not opened" in trtspec("build", medusa).err
        digest = hashlib.sha256((root / "medusa_lm_head.pt").read_bytes()).hexdigest()
        pin = f"allow_pickle: true\n    sha256: {{medusa_lm_head.pt: {digest}}}"
        medusa.write_text(medusa.read_text().replace("./heads", f"./heads\n    {pin}"))
        assert trtspec("build", medusa).code == 0
        artifact = medusa.parent / "build" / "tiny"
        (heads,) = heads_of(artifact / "checkpoints" / "target")
        assert torch.equal(heads["medusa_heads.2.lm_head.weight"], tensors["2.1.weight"])
        generated = trtspec("generate", artifact, "-p", "the", "--max-tokens", "12", "--json").document
        assert generated["new_tokens"] == 12
        assert generated["drafted"] > 63

    @pytest.mark.slow
    def test_lossy_acceptance_is_reported_by_every_command(self, medusa: Path, trtspec: Run) -> None:
        """In the plan, the manifest and every report; the gate for losslessness never holds for it."""
        lossy = ("--set", "speculation.options.lossy=true", "--set", "gates={lossless: false, min_speedup: 0.01}")
        warned = trtspec("check", medusa, *lossy, "--json").document["problems"]
        assert {each["path"] for each in warned} == {"gates.lossless", "speculation.options.lossy"}
        assert trtspec("plan", medusa, *lossy, "--json").document["speculation"]["acceptance"] == "typical"
        assert "typical acceptance: lossy" in trtspec("plan", medusa, *lossy).out
        assert trtspec("build", medusa, *lossy).code == 0
        artifact = medusa.parent / "build" / "tiny"
        manifest = json.loads((artifact / "manifest.json").read_text())
        assert manifest["recipe"]["speculation"]["acceptance"] == "typical"
        for command in (("inspect", artifact), ("generate", artifact, "-p", "the", "--max-tokens", 4),
                        ("bench", artifact, "--runs", 1, "--max-tokens", 2),
                        ("verify", artifact, "--max-tokens", 4)):  # fmt: skip
            done = trtspec(*command, "--json")
            assert done.code == 0, done.err
            assert done.document["acceptance"] == "typical", command

    @pytest.mark.slow
    def test_lossy_artifact_fails_the_lossless_gate(self, medusa: Path, trtspec: Run) -> None:
        """The gate is rejected even if it is added by editing the manifest."""
        lossy = ("--set", "speculation.options.lossy=true", "--set", "gates={lossless: false}")
        assert trtspec("build", medusa, *lossy).code == 0
        artifact = medusa.parent / "build" / "tiny"
        document = read_manifest(artifact)
        document["recipe"]["gates"]["lossless"] = True
        write_manifest(artifact, document)
        verified = trtspec("verify", artifact, "--max-tokens", 4, "--json")
        assert verified.code == 110
        (check,) = [check for check in verified.document["checks"] if check["name"] == "lossless"]
        assert not check["ok"]
        assert check["detail"].endswith("typical acceptance is lossy: sampled text differs from the target's")
