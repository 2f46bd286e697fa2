# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's exporter as a reference: random models of every family, and ModelOpt's checkpoint of a model."""

from __future__ import annotations

import copy
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from trtspec.checkpoints.conversion import Activations

# ModelOpt's decoder type of each architecture.
DECODERS = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen",
    "Qwen3ForCausalLM": "qwen",
}
# Additional options in config.json of each architecture.
FLAGS: dict[str, tuple[str, ...]] = {
    "Gemma2ForCausalLM": (),
    "Gemma3ForCausalLM": (),
    "LlamaForCausalLM": ("attention_bias", "mlp_bias", "tie_word_embeddings"),
    "MistralForCausalLM": (),
    "MixtralForCausalLM": (),
    "Phi3ForCausalLM": ("tie_word_embeddings",),
    "Qwen2ForCausalLM": ("tie_word_embeddings",),
    "Qwen3ForCausalLM": ("attention_bias", "tie_word_embeddings"),
}
# transformers' config classes that are not named like their models.
CONFIGS = {"Gemma3ForCausalLM": "Gemma3TextConfig"}
# (dtype of the source, dtype of the conversion)
DTYPES = (("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float16"), ("bfloat16", "float16"))
# (ranks per stage, stages)
LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2))
# The modules of a layer, by transformers' names, with TensorRT-LLM's names.
EXPERT = re.compile(r"experts\.\d+\.")
MODULES = {
    "self_attn": "attention",
    "self_attn.q_proj": "attention.qkv",
    "self_attn.qkv_proj": "attention.qkv",
    "self_attn.k_proj": "attention.qkv",
    "self_attn.v_proj": "attention.qkv",
    "self_attn.o_proj": "attention.dense",
    "mlp.gate_proj": "mlp.fc",
    "mlp.gate_up_proj": "mlp.fc",
    "mlp.up_proj": "mlp.gate",
    "mlp.down_proj": "mlp.proj",
    "mlp.w1": "mlp.fc",
    "mlp.w3": "mlp.fc",
    "mlp.w2": "mlp.proj",
}


@dataclass(frozen=True)
class Case:
    """A model and its conversion: `weights`, `kv_cache` and `exclude` as in a recipe's `quantization`.

    `shape` is the content of config.json, `stored` the dtype of the source, `dtype` the dtype of unquantized tensors.
    """

    architecture: str
    tensor: int
    pipeline: int
    stored: str
    dtype: str
    shape: dict[str, Any]
    weights: str = "none"
    kv_cache: str = "none"
    exclude: tuple[str, ...] = ("lm_head",)

    def __str__(self) -> str:
        """Return the test id."""
        parts = [self.architecture.removesuffix("ForCausalLM"), f"tp{self.tensor}", f"pp{self.pipeline}", self.dtype]
        return "-".join([*parts, *(text for text in (self.weights, self.kv_cache) if text != "none")])


def random_case(architecture: str, tensor: int, pipeline: int, seed: int = 0, **quantization: Any) -> Case:
    """Return a small configuration, which is a deterministic function of the arguments."""
    draw = random.Random(f"{architecture} {tensor} {pipeline} {seed} {quantization}")
    kv_heads = draw.choice([heads for heads in (1, 2, 3, 4, 6, 8) if not (heads % tensor and tensor % heads)])
    heads = kv_heads * draw.choice([group for group in (1, 2, 3, 4) if not kv_heads * group % tensor])
    head_size = draw.choice((4, 8, 16))
    stored, dtype = draw.choice(DTYPES)
    shape: dict[str, Any] = {
        "hidden_size": heads * head_size,
        "intermediate_size": tensor * draw.randrange(5, 20),
        "num_hidden_layers": pipeline * draw.choice((1, 2)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": draw.randrange(50, 150),
        "max_position_embeddings": draw.choice((64, 128)),
        "rms_norm_eps": draw.choice((1e-5, 1e-6)),
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,
    }
    shape |= {flag: draw.random() < 0.5 for flag in FLAGS[architecture]}
    if architecture == "Qwen3ForCausalLM" or draw.random() < 0.5:
        shape |= {"head_dim": head_size, "hidden_size": heads * draw.choice((2, 4, 6))}
    if "Gemma" in architecture:
        shape |= {"head_dim": head_size, "query_pre_attn_scalar": 12, "sliding_window": 32, "pad_token_id": None}
    if architecture == "Phi3ForCausalLM":
        shape |= {"head_dim": shape["hidden_size"] // heads, "pad_token_id": None}
    if architecture == "MixtralForCausalLM":
        shape |= {"num_local_experts": max(tensor, draw.choice((2, 4))), "num_experts_per_tok": 2}
    return Case(architecture, tensor, pipeline, stored, dtype, shape, **quantization)


def make_model(case: Case, *, stacked_experts: bool = False) -> Any:
    """Return transformers' model of a case with random weights, norms and biases.

    A mixture has a module for each expert, or with `stacked_experts` the stacked experts of transformers 5.
    """
    import transformers

    torch.manual_seed(0)
    name = CONFIGS.get(case.architecture, case.architecture.replace("ForCausalLM", "Config"))
    config_class = getattr(transformers, name)
    config = config_class(**case.shape, architectures=[case.architecture])
    model = getattr(transformers, case.architecture)(config)
    if case.architecture == "MixtralForCausalLM" and not stacked_experts:
        for layer in model.model.layers:
            layer.mlp = MixtralSparseMoeBlock(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(getattr(torch, case.stored)).eval()


class MixtralSparseMoeBlock(nn.Module):
    """The MLP of Mixtral as in transformers 4, with a module for each expert.

    ModelOpt identifies it by the names of the class and its children; it cannot export the stacked experts of
    transformers 5.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = nn.ModuleList(Expert(config) for _ in range(config.num_local_experts))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the sum of the experts' outputs, weighted by the router's renormalized probabilities."""
        probabilities = self.gate(hidden).softmax(-1)
        kept = probabilities.topk(self.top_k)
        weights = torch.zeros_like(probabilities).scatter(-1, kept.indices, kept.values / kept.values.sum(-1, True))
        return sum(weights[..., [number]] * expert(hidden) for number, expert in enumerate(self.experts))


class Expert(nn.Module):
    """One gated MLP: w1 goes through the activation, w3 does not, w2 projects back."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(hidden)) * self.w3(hidden))


def save_source(model: Any, root: Path) -> Path:
    """Save a model in the layout of public checkpoints, with Mixtral's name of its MLP."""
    from safetensors.torch import save_file

    root.mkdir(parents=True)
    model.config.dtype = model.dtype
    model.config.save_pretrained(root)
    moe = hasattr(model.config, "num_local_experts")
    tensors = {
        name.replace(".mlp.", ".block_sparse_moe.") if moe else name: tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if not (name == "lm_head.weight" and model.config.tie_word_embeddings)
    }
    save_file(tensors, root / "model.safetensors", metadata={"format": "pt"})
    return root


def quantize(model: Any, case: Case) -> None:
    """Insert ModelOpt's quantizers for a case, and calibrate them with a few random prompts."""
    import modelopt.torch.quantization as mtq

    nothing = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": "max"}
    schemes = {"none": nothing, "fp8": mtq.FP8_DEFAULT_CFG, "fp8_rowwise": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG}
    scheme = copy.deepcopy(schemes[case.weights])
    if "lm_head" not in case.exclude:  # ModelOpt's lists exclude it; later entries win
        e4m3 = {"num_bits": (4, 3), "axis": None}
        scheme["quant_cfg"] += [
            {"quantizer_name": f"lm_head.{kind}_quantizer", "cfg": e4m3} for kind in ("weight", "input")
        ]
    for pattern in case.exclude:
        path = pattern.replace("transformer.", "model.")
        scheme["quant_cfg"].append({"quantizer_name": f"{path}*", "enable": False})
    if case.kv_cache == "fp8":
        scheme = mtq.utils.update_quant_cfg_with_kv_cache_quant(scheme, mtq.FP8_KV_CFG["quant_cfg"])
    prompts = torch.randint(model.config.vocab_size, (4, 32), generator=torch.Generator().manual_seed(1))
    mtq.quantize(model, scheme, lambda model: model(prompts))


def measured(model: Any) -> Activations:
    """Return the results of ModelOpt's calibration, with the names of the converted checkpoint."""
    found = Activations()
    tables = {"input_quantizer": found.inputs, "k_bmm_quantizer": found.keys, "v_bmm_quantizer": found.values}
    for path, quantizer in model.named_modules():
        owner, _, kind = path.rpartition(".")
        if kind in tables and (amax := quantizer.amax) is not None:
            name = converted_module(owner)
            tables[kind][name] = max(amax.item(), tables[kind].get(name, 0.0))
    return found


def converted_module(path: str) -> str:
    """Return the module of the converted checkpoint that contains a module of transformers' model."""
    if path == "lm_head":
        return path
    layer, _, module = path.removeprefix("model.layers.").partition(".")
    return f"transformer.layers.{layer}.{MODULES[EXPERT.sub('', module)]}"


@torch.inference_mode()
def export(model: Any, case: Case, root: Path) -> None:
    """Export a model to `root` as ModelOpt's TensorRT-LLM checkpoint."""
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    with patch.dict(sys.modules, tensorrt_llm_knowing(case.architecture) if needs_tensorrt_llm(case) else {}):
        export_tensorrt_llm_checkpoint(
            model,
            DECODERS[case.architecture],
            dtype=getattr(torch, case.dtype),
            export_dir=root,
            inference_tensor_parallel=case.tensor,
            inference_pipeline_parallel=case.pipeline,
        )


def needs_tensorrt_llm(case: Case) -> bool:
    """Return whether ModelOpt requires TensorRT-LLM for a model's config.json (but not for its tensors)."""
    return DECODERS[case.architecture] not in ("llama", "qwen")


def tensorrt_llm_knowing(architecture: str) -> dict[str, ModuleType]:
    """Return stand-ins for TensorRT-LLM's modules, whose config class of a model adds nothing."""

    class Config(SimpleNamespace):
        def to_dict(self) -> dict[str, Any]:
            return {"mapping": self.mapping, "quantization": self.quant_config}

    identity = SimpleNamespace(from_dict=lambda values: values)
    config_class = SimpleNamespace(from_hugging_face=lambda hf_config_or_dir, **rest: Config(**rest))
    package, models, utils = (ModuleType(f"tensorrt_llm{name}") for name in ("", ".models", ".models.modeling_utils"))
    models.__dict__["MODEL_MAP"] = {architecture: SimpleNamespace(config_class=config_class)}
    utils.__dict__.update(Mapping=identity, QuantConfig=identity)
    return {module.__name__: module for module in (package, models, utils)}
