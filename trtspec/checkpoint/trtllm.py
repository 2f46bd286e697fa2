# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's checkpoint format: config.json and one rank{r}.safetensors a rank, written and read.

Keys and tensor names are those of TensorRT-LLM 1.0 - 1.2 (`PretrainedConfig` and `LLaMAConfig`; NVIDIA/TensorRT-LLM,
docs/source/legacy/architecture/checkpoint.md). `mlp.fc` is Hugging Face's gate_proj (the activated branch) and
`mlp.gate` its up_proj; q, k and v are rows of one `attention.qkv`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig, RopeScaling
from trtspec.checkpoint.rules import Matched, Rule
from trtspec.checkpoint.safetensors import TensorInfo, Writer, iter_chunks, read_header
from trtspec.checkpoint.source import MAX_CONFIG_BYTES, read_json
from trtspec.errors import CheckpointError

DTYPES = {"bfloat16": "BF16", "float16": "F16"}
CHUNK_BYTES = 4 << 20

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
LM_HEAD = "lm_head.weight"


def layer_tensor(layer: int, name: str) -> str:
    """Return the full name of a layer's tensor, e.g. layer_tensor(0, "attention.qkv.weight")."""
    return f"transformer.layers.{layer}.{name}"


def render_config(config: ModelConfig) -> dict[str, Any]:
    """Return config.json for `config` on one rank."""
    return {
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
        "rotary_scaling": _render_scaling(config.rope_scaling),
        "attn_bias": config.attn_bias,
        "mlp_bias": config.mlp_bias,
        "qk_layernorm": False,
        "tie_word_embeddings": config.tied_embeddings,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": 1, "gpus_per_node": 8, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def _render_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    rendered = {"rope_type": scaling.kind, "type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        rendered |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return rendered


@dataclass(frozen=True)
class Checkpoint:
    """A converted checkpoint in a directory."""

    root: Path
    config: ModelConfig
    tensors: dict[str, TensorInfo]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def is_converted(root: Path) -> bool:
    """Return whether `root` holds a TensorRT-LLM checkpoint rather than a Hugging Face one."""
    return (root / "rank0.safetensors").is_file()


def load_checkpoint(root: Path) -> Checkpoint:
    """Read config.json and the headers of a converted checkpoint; raises CheckpointError for what is not one."""
    reader = ConfigReader(read_json(root / "config.json", MAX_CONFIG_BYTES), str(root / "config.json"))
    mapping = reader.section("mapping")
    if mapping is None or mapping.positive("world_size") != 1:
        raise reader.refuse("is sharded over several ranks, or has no mapping; one rank can be read")
    quantization = reader.section("quantization")
    if quantization and (algo := quantization.values.get("quant_algo")):
        raise reader.refuse(f"is quantized ({algo}); unquantized checkpoints can be read")
    return Checkpoint(root, _read_config(reader), read_header(root / "rank0.safetensors"))


def _read_config(reader: ConfigReader) -> ModelConfig:
    heads = reader.positive("num_attention_heads")
    return ModelConfig(
        architecture=reader.get("architecture", str),
        dtype=reader.get("dtype", str),
        vocab_size=reader.positive("vocab_size"),
        hidden_size=reader.positive("hidden_size"),
        num_layers=reader.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.positive("num_key_value_heads", heads),
        head_size=reader.positive("head_size", reader.positive("hidden_size") // heads),
        intermediate_size=reader.positive("intermediate_size"),
        hidden_act=reader.get("hidden_act", str),
        norm_epsilon=reader.get("norm_epsilon", float, 1e-5),
        max_positions=reader.positive("max_position_embeddings"),
        rotary_base=reader.get("rotary_base", float, 10000.0),
        rope_scaling=read_rope_scaling(reader.section("rotary_scaling"), reader.positive("max_position_embeddings")),
        attn_bias=reader.get("attn_bias", bool, False),
        mlp_bias=reader.get("mlp_bias", bool, False),
        tied_embeddings=reader.get("tie_word_embeddings", bool, False),
    )


def read_rope_scaling(section: ConfigReader | None, max_positions: int) -> RopeScaling | None:
    """Return the scaling described in Hugging Face's `rope_scaling` words, or None for plain rotary positions.

    Raises CheckpointError for a kind the embedded engine cannot serve.
    """
    if section is None:
        return None
    kind = section.get("rope_type", str, section.values.get("type") or "default")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, section.get("factor", float))
    if kind == "llama3":
        return RopeScaling(
            kind,
            section.get("factor", float),
            section.get("low_freq_factor", float),
            section.get("high_freq_factor", float),
            section.positive("original_max_position_embeddings", max_positions),
        )
    raise section.refuse(f"rope type {kind!r} is not supported; supported: default, linear, llama3")


def write_checkpoint(
    out: Path, config: ModelConfig, rules: list[Rule], matched: Matched, on_bytes: Callable[[int], None]
) -> None:
    """Stream the matched tensors into `out` as a one-rank checkpoint; memory stays at a few chunks.

    `on_bytes` is called with the source bytes done since the last call. Raises CheckpointError where a value of the
    source does not fit the dtype.
    """
    dtype = DTYPES[config.dtype]
    with Writer(out / "rank0.safetensors", [(rule.target, dtype, rule.shape) for rule in rules]) as writer:
        buffer = bytearray(CHUNK_BYTES)
        for rule in rules:
            position = 0
            for part in matched.parts[rule.target]:
                for data, source_bytes in _cast_chunks(part, dtype, buffer):
                    writer.write(rule.target, position, data)
                    position += data.nbytes
                    on_bytes(source_bytes)
    (out / "config.json").write_text(json.dumps(render_config(config), indent=2) + "\n")


def _cast_chunks(part: TensorInfo, dtype: str, buffer: bytearray) -> Iterator[tuple[memoryview, int]]:
    """Yield a tensor's bytes as `dtype`, each piece with the number of source bytes it was made from."""
    from trtspec.checkpoint.cast import make_cast  # numpy, which planning does without

    cast = make_cast(part.dtype, dtype)
    overflowed = 0
    for chunk in iter_chunks(part, buffer):
        data, count = cast(chunk)
        overflowed += count
        yield data, len(chunk)
    if overflowed:
        raise CheckpointError(
            f"{overflowed:,} values of {part.name!r} are too large for {dtype}",
            where=str(part.file),
            hint="set dtype: bfloat16 in the recipe",
        )
