# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM leaves exactly the modules in 16 bits that config.json excludes, in each of its ways to read the list.

NVIDIA/TensorRT-LLM: quantization/quantize.py@89fd9b74 matches names of modules, and names of attentions, MLPs and norms
if FP8 has row scales; models/modeling_utils.py@01ea6d79 uses exact names, and prefixes before a `*`.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_model
from tests.checkpoints.quant import modelopt
from tests.checkpoints.quant.test_modelopt_parity import export_both, shaped
from tests.doubles.checkpoints import activations_of
from tests.doubles.required import required_tensors
from trtspec.backends.common.convert import ONE_RANK
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.safetensors import read_header
from trtspec.checkpoints.sharding import ParallelMapping

EVERYWHERE = ("*attention*", "*.mlp.*", "*attention*|*.mlp.*")
ONE_LAYER = ("transformer.layers.1.*", "*layers.0.attention*")
LAYERS = 3


def convert_without(source: Path, out: Path, weights: str, patterns: str, mapping: ParallelMapping = ONE_RANK) -> Path:
    """Convert to FP8, excluding modules that match the patterns."""
    scheme = Scheme(weights, exclude=("lm_head", *patterns.split("|")))
    return convert(source, out, mapping=mapping, scheme=scheme, activations=activations_of(LAYERS))


def read(root: Path) -> dict[str, Any]:
    config = json.loads((root / "config.json").read_text())
    assert isinstance(config, dict)
    return config


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind of layer, by family."""
    root = tmp_path_factory.mktemp("sources")
    return {
        family: make_model(root / family, family, num_hidden_layers=LAYERS) for family in ("llama", "qwen2", "mixtral")
    }


# pipeline stages number their layers from 0, so patterns cannot select single layers
DIVIDED = [(patterns, ParallelMapping(2, 2)) for patterns in EVERYWHERE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patterns", "mapping"), [*((patterns, ParallelMapping(2)) for patterns in (*EVERYWHERE, *ONE_LAYER)), *DIVIDED]
)
@pytest.mark.parametrize(("family", "weights"), [("llama", "fp8"), ("llama", "fp8_rowwise"), ("mixtral", "fp8")])
def test_tensor_dtypes_match_those_the_engine_requires(
    family: str, weights: str, patterns: str, mapping: ParallelMapping, sources: dict[str, Path], tmp_path: Path
) -> None:
    out = convert_without(sources[family], tmp_path, weights, patterns, mapping)
    for rank in range(mapping.ranks):
        header = read_header(out / f"rank{rank}.safetensors")
        needed = required_tensors(read(out), rank)
        assert {name: tensor.dtype for name, tensor in header.items()} == {
            name: dtype for name, (dtype, _) in needed.items()
        }


@pytest.mark.parametrize("patterns", [*EVERYWHERE, *ONE_LAYER])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_mlp_fc_is_excluded_exactly_if_its_weight_is_not_fp8(
    family: str, patterns: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    out = convert_without(sources[family], tmp_path, "fp8", patterns)
    header, named = read_header(out / "rank0.safetensors"), read(out)["quantization"]["exclude_modules"]
    for layer in range(LAYERS):
        name = f"transformer.layers.{layer}.mlp.fc"
        is_left = any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in named)
        assert is_left == (header[f"{name}.weight"].dtype != "F8_E4M3")


@pytest.mark.parametrize("patterns", [*EVERYWHERE, *ONE_LAYER])
def test_norms_are_excluded_together_with_the_block_they_feed(
    patterns: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    out = convert_without(sources["llama"], tmp_path, "fp8_rowwise", patterns)
    named = read(out)["quantization"]["exclude_modules"]
    for layer in range(LAYERS):
        for norm, block in (("input_layernorm", "attention"), ("post_layernorm", "mlp")):
            left = [
                any(fnmatchcase(f"transformer.layers.{layer}.{module}", each) for each in named)
                for module in (norm, block)
            ]
            assert left[0] == left[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ModelOpt warns that this exporter is deprecated
@pytest.mark.parametrize("pattern", ["transformer.layers.0.*", "*att*", "*.mlp.*"])
def test_excluded_modules_match_modelopt(pattern: str, tmp_path: Path) -> None:
    case = modelopt.random_case("LlamaForCausalLM", 1, 1, weights="fp8", exclude=("lm_head", pattern))
    case = shaped(case, num_hidden_layers=LAYERS, tie_word_embeddings=False)
    both = export_both(case, modelopt.make_model(case), tmp_path)
    linear = [name.removesuffix(".weight") for name, tensor in both.theirs.ranks[0].items() if tensor.ndim == 2]

    def left(config: dict[str, Any]) -> set[str]:
        named = config["quantization.exclude_modules"]
        return {name for name in linear if "embedding" not in name and any(fnmatchcase(name, each) for each in named)}

    assert left(both.ours.config) == left(both.theirs.config)
    assert "lm_head" in left(both.ours.config)
    assert len(left(both.ours.config)) > 1
