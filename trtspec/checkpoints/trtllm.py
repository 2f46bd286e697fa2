# SPDX-License-Identifier: Apache-2.0
"""Read and write TensorRT-LLM's checkpoint format: config.json and one rank{r}.safetensors per rank.

Keys and tensor names follow TensorRT-LLM 1.0 - 1.2 (`PretrainedConfig`, `LLaMAConfig` and `QWenConfig`;
NVIDIA/TensorRT-LLM, docs/source/legacy/architecture/checkpoint.md). `mlp.fc` is Hugging Face's gate_proj (the activated
branch) and `mlp.gate` its up_proj; q, k and v are rows of one `attention.qkv`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rope import read_stored_scaling, render_longrope, render_rope_scaling
from trtspec.checkpoints.safetensors import TensorInfo, read_header
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.diagnostics import quote_value

DTYPES = {"bfloat16": "BF16", "float16": "F16"}
MOST_RANKS_READ = 4096
AGAIN = "convert the source again: trtspec build"
MOST_LAYERS = 4096

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
LM_HEAD = "lm_head.weight"
QKV = "attention.qkv.weight"  # in a layer

# NVIDIA/TensorRT-LLM, tensorrt_llm/quantization/mode.py QuantAlgo
FP8 = "FP8"
FP8_ROWWISE = "FP8_PER_CHANNEL_PER_TOKEN"
LAYER_KINDS = {False: "full_attention", True: "sliding_attention"}  # keys: whether a layer has a sliding window
# config.json keys of some families, and the corresponding fields of ModelConfig.
_FEATURES = {
    "rope_local_base_freq": "local_rotary_base",
    "inter_layernorms": "inner_norms",
    "emb_scale_by_sqrt_dim": "scaled_embedding",
    "query_pre_attn_scalar": "query_scalar",
    "attn_logit_softcapping": "attention_cap",
    "final_logit_softcapping": "logit_cap",
    # tensorrt_llm/models/llama/config.py
    "embedding_multiplier": "embedding_multiplier",
    "attention_multiplier": "attention_multiplier",
    "residual_multiplier": "residual_multiplier",
    "output_multiplier_scale": "logit_multiplier",
    # read by the torch engine only
    "input_layernorms": "input_norms",
    "qk_layernorm_over_heads": "qk_norm_over_heads",
}
# Keys of some TensorRT-LLM config classes that are kept unchanged, with their types.
_EXTRA: dict[str, type] = {"qwen_type": str, "rotary_pct": float, "_sliding_window_pattern": int}
RENORMALIZE = 1  # MoeConfig.ExpertScaleNormalizationMode: the weights of the selected experts add up to one


@dataclass(frozen=True)
class TrtllmQuantization:
    """The `quantization` of a checkpoint: algorithms ("" for none) and patterns of the excluded modules."""

    algo: str = ""
    kv_cache_algo: str = ""
    exclude: tuple[str, ...] = ()


def render_config(config: ModelConfig, mapping: ParallelMapping, quantization: TrtllmQuantization) -> dict[str, Any]:
    """Return the content of the converted checkpoint's config.json."""
    rendered: dict[str, Any] = {
        "producer": {"name": "trtspec"},
        "architecture": config.architecture,
        "dtype": config.dtype,
        "logits_dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_size": config.head_size,
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_act,
        "norm_epsilon": config.norm_epsilon,
        "max_position_embeddings": config.max_positions,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": config.rotary_base,
        "rotary_scaling": render_rope_scaling(config.rope_scaling),
        "attn_bias": config.attn_bias,
        "mlp_bias": config.mlp_bias,
        "qk_layernorm": config.qk_norm,
        "tie_word_embeddings": config.tied_embeddings,
        "use_parallel_embedding": mapping.embedding,
        "embedding_sharding_dim": 0,
        "mapping": _render_mapping(config, mapping),
        "quantization": _render_quantization(quantization),
        **dict(config.extra),
    }
    if config.sliding_window:
        rendered["sliding_window"] = config.sliding_window
    if config.full_layers:
        rendered["layer_types"] = [LAYER_KINDS[config.has_window(layer)] for layer in range(config.num_layers)]
    rendered |= {
        key: value
        for key, field in _FEATURES.items()
        if (value := getattr(config, field)) != getattr(ModelConfig, field)
    }
    if config.rope_scaling and config.rope_scaling.kind == "longrope":
        rendered |= render_longrope(config.rope_scaling)
    if config.num_experts:
        rendered["moe"] = {
            "num_experts": config.num_experts,
            "top_k": config.experts_per_token,
            "normalization_mode": RENORMALIZE,
        }
    return rendered


def _render_mapping(config: ModelConfig, mapping: ParallelMapping) -> dict[str, int]:
    sizes = {"world_size": mapping.ranks, "gpus_per_node": 8, "tp_size": mapping.tensor, "pp_size": mapping.pipeline}
    moe = {"moe_tp_size": mapping.tensor, "moe_ep_size": 1} if config.num_experts else {}
    return {**sizes, "cp_size": 1, **moe}


def _render_quantization(quantization: TrtllmQuantization) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "quant_algo": quantization.algo or None,
        "kv_cache_quant_algo": quantization.kv_cache_algo or None,
    }
    if quantization.algo:
        rendered["exclude_modules"] = list(quantization.exclude)
    return rendered


@dataclass(frozen=True)
class TrtllmCheckpoint:
    """A converted checkpoint directory; `ranks` has the tensor headers of each rank's file.

    `document` is config.json, from which draft heads inside the model read their keys.
    """

    root: Path
    document: ConfigReader
    config: ModelConfig
    mapping: ParallelMapping
    quantization: TrtllmQuantization
    ranks: tuple[dict[str, TensorInfo], ...]

    @property
    def nbytes_by_rank(self) -> list[int]:
        return [sum(tensor.nbytes for tensor in rank.values()) for rank in self.ranks]

    @cached_property
    def tensors(self) -> list[TensorInfo]:
        return [tensor for rank in self.ranks for tensor in rank.values()]


def is_converted(root: Path) -> bool:
    """Return whether `root` has a TensorRT-LLM checkpoint instead of a Hugging Face one."""
    return (root / "rank0.safetensors").is_file()


def load_checkpoint(root: Path) -> TrtllmCheckpoint:
    """Load config.json and tensor headers of a converted checkpoint; raise CheckpointError if invalid."""
    reader = ConfigReader(read_json(root / "config.json", MAX_CONFIG_BYTES), str(root / "config.json"))
    mapping, quantization = _read_mapping(reader), _read_quantization(reader)
    ranks = tuple(read_header(root / f"rank{rank}.safetensors") for rank in range(mapping.ranks))
    return TrtllmCheckpoint(root, reader, read_config(reader, ranks[0].keys()), mapping, quantization, ranks)


def _read_mapping(reader: ConfigReader) -> ParallelMapping:
    section = reader.section("mapping")
    if section is None:
        raise reader.refuse("lacks mapping", AGAIN)
    tensor, pipeline = (section.positive(f"{kind}_size", 1, most=MOST_RANKS_READ) for kind in ("tp", "pp"))
    if section.positive("world_size", most=MOST_RANKS_READ) != tensor * pipeline:
        message = (
            f"world_size is not tp_size {tensor} times pp_size {pipeline}; other kinds of parallelism are not supported"
        )
        raise section.refuse(message, AGAIN)
    return ParallelMapping(tensor, pipeline, reader.get("use_parallel_embedding", bool, False))


def _read_quantization(reader: ConfigReader) -> TrtllmQuantization:
    section = reader.section("quantization")
    if section is None:
        return TrtllmQuantization()
    algo = section.get("quant_algo", str, "")
    if algo not in ("", FP8, FP8_ROWWISE):
        raise reader.refuse(f"is quantized with {algo}; supported: {FP8}, {FP8_ROWWISE}", AGAIN)
    kv_cache = section.get("kv_cache_quant_algo", str, "")
    if kv_cache not in ("", FP8):
        raise reader.refuse(f"has a KV cache in {kv_cache}; supported: {FP8}", AGAIN)
    return TrtllmQuantization(algo, kv_cache, tuple(section.get("exclude_modules", list, [])))


def read_config(reader: ConfigReader, names: Collection[str], prefix: str = "transformer.layers.0.") -> ModelConfig:
    """Read a ModelConfig from a converted config.json, or from its section for a nested model.

    Biases and norms are detected by the tensor names of the first layer, which begin with `prefix`, because not every
    exporter records them in config.json.
    """
    heads = reader.positive("num_attention_heads")
    max_positions, moe = reader.positive("max_position_embeddings"), reader.section("moe")
    experts = moe.get("num_experts", int, 0) if moe else 0

    def has(name: str) -> bool:
        return f"{prefix}{name}" in names

    return ModelConfig(
        architecture=reader.get("architecture", str),
        dtype=reader.get("dtype", str),
        vocab_size=reader.positive("vocab_size"),
        hidden_size=reader.positive("hidden_size"),
        num_layers=reader.positive("num_hidden_layers", most=MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=reader.positive("num_key_value_heads", heads),
        head_size=reader.positive("head_size", reader.positive("hidden_size") // heads),
        intermediate_size=reader.positive("intermediate_size"),
        hidden_act=reader.get("hidden_act", str),
        norm_epsilon=reader.get("norm_epsilon", float, 1e-5),
        max_positions=max_positions,
        rotary_base=reader.get("rotary_base", float, 10000.0),
        rope_scaling=read_stored_scaling(reader, max_positions),
        attn_bias=has("attention.qkv.bias"),
        dense_bias=has("attention.dense.bias"),
        mlp_bias=has("mlp.fc.bias"),
        qk_norm=has("attention.q_layernorm.weight"),
        num_experts=experts,
        experts_per_token=moe.positive("top_k") if moe and experts else 0,
        sliding_window=reader.positive("sliding_window") if reader.values.get("sliding_window") else 0,
        rotary_share=reader.get("rotary_pct", float, 1.0),
        full_layers=read_full_layers(reader),
        **_read_features(reader),
        tied_embeddings=reader.get("tie_word_embeddings", bool, False),
        extra=tuple((key, reader.get(key, kind)) for key, kind in _EXTRA.items() if key in reader.values),
    )


def read_full_layers(reader: ConfigReader, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the layers without a sliding window according to `layer_types`, or `default` if the key is missing."""
    kinds = reader.values.get("layer_types")
    if kinds is None:
        return default
    layers = reader.positive("num_hidden_layers", most=MOST_LAYERS)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in LAYER_KINDS.values() for kind in kinds):
        raise reader.refuse_value(
            f"layer_types is {quote_value(kinds)}, expected {layers} times {' or '.join(LAYER_KINDS.values())}"
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind == LAYER_KINDS[False])


def _read_features(reader: ConfigReader) -> dict[str, Any]:
    defaults = {field: getattr(ModelConfig, field) for field in _FEATURES.values()}
    return {field: reader.get(key, type(defaults[field]), defaults[field]) for key, field in _FEATURES.items()}
