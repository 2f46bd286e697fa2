# SPDX-License-Identifier: Apache-2.0
"""The parts that families share: reading a Llama-style config.json, and the rules of layers with common tensor names.

A family defines only its differences. This module does not import the families.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rope import check_share, depends_on_positions, read_rotary
from trtspec.checkpoints.rules import LinearLayer, Rule, Skip, SourceTensor, Split, Stage, row_split
from trtspec.checkpoints.trtllm import DTYPES, EMBEDDING, FINAL_NORM, LM_HEAD, MOST_LAYERS

OLD_LENGTH = "max_sequence_length"
# Defaults of transformers' LlamaConfig, 5.23, for keys that configs of draft heads omit.
HEAD_DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
NORMS = {"post_layernorm": "post_attention_layernorm"}  # source names that differ from TensorRT-LLM's


def read_decoder(
    reader: ConfigReader,
    dtype: str,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    base: float = 10000.0,
    **differences: Any,
) -> ModelConfig:
    """Return the config of a model from a Llama-style config.json; raise CheckpointError for unsupported values.

    `dtype` is the recipe's dtype, or "auto" for the one in config.json. `activation` is the key of the MLP's activation
    and its supported value. `base` is the default rotary base. `differences` are fields of ModelConfig that the family
    sets itself, such as `rotary` for other rotary positions.
    """
    hidden, heads = reader.positive("hidden_size"), reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_size = differences.pop("head_size", None) or reader.positive("head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise reader.refuse_value(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if reader.values.get("head_dim") is None and hidden % heads:
        raise reader.refuse_value(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if head_size % 2:
        raise reader.refuse_value(f"head size {head_size} is odd; rotary positions need pairs")
    key, served = activation
    if (act := reader.get(key, str, served)) != served:
        raise reader.unsupported(f"{key} {act!r} is not supported; supported: {served}")
    max_positions = reader.positive("max_position_embeddings")
    rotary = differences.pop("rotary", None)
    if rotary is None:
        rotary = read_rotary(reader, max_positions, base)
        check_share(reader, rotary.share)
    fields: dict[str, Any] = {
        "architecture": reader.get("architectures", list)[0],
        "dtype": _dtype(reader, dtype),
        "vocab_size": reader.positive("vocab_size"),
        "hidden_size": hidden,
        "num_layers": reader.positive("num_hidden_layers", most=MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_size": head_size,
        "intermediate_size": reader.positive("intermediate_size"),
        "hidden_act": act,
        "norm_epsilon": reader.get("rms_norm_eps", float),
        "max_positions": read_max_positions(reader),
        "rotary_base": rotary.base,
        "rope_scaling": rotary.scaling,
        "rotary_share": rotary.share,
        "attn_bias": False,
        "mlp_bias": False,
        "tied_embeddings": reader.get("tie_word_embeddings", bool, False),
    }
    return ModelConfig(**fields | differences)


def read_max_positions(reader: ConfigReader) -> int:
    """Return the maximum text length in tokens.

    If config.json lacks max_position_embeddings, the value of the old key max_sequence_length is used, although
    transformers ignores it. Raise CheckpointError if the rotary scaling depends on the length: transformers would then
    compute with its own default.
    """
    positions = reader.positive("max_position_embeddings")
    if "max_position_embeddings" not in reader.assumed or reader.values.get(OLD_LENGTH) is None:
        return positions
    old = reader.positive(OLD_LENGTH)
    if old != positions and depends_on_positions(reader):
        message = f"{OLD_LENGTH} is {old}, but transformers uses its default of {positions} for the rotary scaling"
        raise reader.refuse(message, f"rename {OLD_LENGTH} to max_position_embeddings in config.json")
    return old


def sliding_window(reader: ConfigReader) -> int:
    """Return the sliding window in tokens; 0 without one."""
    return reader.positive("sliding_window") if reader.values.get("sliding_window") else 0


def _dtype(reader: ConfigReader, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    own = reader.get("dtype", str, reader.values.get("torch_dtype") or "float32")
    # TensorRT-LLM engines compute in 16 bits; for float32, "auto" is float16 as in TensorRT-LLM's converter
    own = "float16" if own == "float32" else own
    if own not in DTYPES:
        raise reader.refuse(f"dtype {own!r} is not supported", f"set dtype: {' or '.join(DTYPES)} in the recipe")
    return own


def decoder_rules(config: ModelConfig) -> list[Rule]:
    """Return the conversion rules of all tensors of a decoder, in the order of the converted checkpoint."""
    feed_forward = experts if config.num_experts else mlp
    layers = [attention(config, layer) + feed_forward(config, layer) for layer in range(config.num_layers)]
    return assemble(config, layers)


def assemble(config: ModelConfig, layers: list[list[Rule]]) -> list[Rule]:
    """Return the conversion rules of the embedding, the given rules of the layers, the final norm and the LM head."""
    embedding = (config.vocab_size, config.hidden_size)
    tokens = SourceTensor("model.embed_tokens.weight", embedding)
    head = tokens if config.tied_embeddings else SourceTensor("lm_head.weight", embedding)
    return [
        Rule(EMBEDDING, (tokens,), Stage.FIRST, Split.EMBEDDING),
        *(rule for layer in layers for rule in layer),
        Rule(FINAL_NORM, (SourceTensor("model.norm.weight", (config.hidden_size,)),), Stage.LAST),
        # TensorRT-LLM detects an LM head equal to the embedding and keeps one copy
        Rule(LM_HEAD, (head,), Stage.LAST, Split.VOCABULARY, LinearLayer(), copy=config.tied_embeddings),
    ]


def attention(config: ModelConfig, layer: int) -> list[Rule]:
    """Return the conversion rules of a layer's norms and attention tensors."""
    hidden, size, prefix = config.hidden_size, config.head_size, f"model.layers.{layer}"
    own = f"{prefix}.self_attn"
    linear = LinearLayer(norm=config.sublayer_norms[0])
    found = [
        Rule(f"{name}.weight", (SourceTensor(f"{prefix}.{NORMS.get(name, name)}.weight", (hidden,)),), layer)
        for name in config.sublayer_norms
        if name
    ]
    heads = (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads))

    def projections(kind: str, *width: int) -> tuple[SourceTensor, ...]:
        return tuple(SourceTensor(f"{own}.{name}_proj.{kind}", (count * size, *width), count) for name, count in heads)

    found.append(Rule("attention.qkv.weight", projections("weight", hidden), layer, Split.ROWS, linear))
    if config.attn_bias:
        found.append(Rule("attention.qkv.bias", projections("bias"), layer, Split.ROWS))
    output = SourceTensor(f"{own}.o_proj.weight", (hidden, config.num_heads * size))
    found.append(Rule("attention.dense.weight", (output,), layer, Split.COLUMNS, linear))
    if config.dense_bias:
        found.append(Rule("attention.dense.bias", (SourceTensor(f"{own}.o_proj.bias", (hidden,)),), layer))
    if config.qk_norm:
        found += [
            Rule(f"attention.{n}_layernorm.weight", (SourceTensor(f"{own}.{n}_norm.weight", (width,)),), layer)
            for n, width in zip("qk", config.qk_norm_sizes, strict=True)
        ]
    return found


def mlp(config: ModelConfig, layer: int) -> list[Rule]:
    """Return the conversion rules of a layer's dense MLP.

    `fc` is the branch with the activation. With "swiglu", `fc` contains both branches and `gate` is omitted.
    """
    hidden, inter, linear = config.hidden_size, config.intermediate_size, _mlp_layer(config)
    modules: dict[str, tuple[tuple[str, ...], tuple[int, int], Split, LinearLayer]] = {
        "fc": (("gate_proj",), (inter, hidden), Split.ROWS, replace(linear, fused="mlp.gate.weight")),
        "gate": (("up_proj",), (inter, hidden), Split.ROWS, replace(linear, fused="mlp.fc.weight")),
        "proj": (("down_proj",), (hidden, inter), Split.COLUMNS, linear),
    }
    if config.hidden_act == "swiglu":  # the linear branch precedes the activated one
        modules["fc"] = (("up_proj", "gate_proj"), (inter, hidden), Split.ROWS, linear)
        del modules["gate"]
    found = []
    for target, (names, shape, split, kind) in modules.items():
        sources = [f"model.layers.{layer}.mlp.{name}" for name in names]
        weights = tuple(SourceTensor(f"{source}.weight", shape) for source in sources)
        found.append(Rule(f"mlp.{target}.weight", weights, layer, split, kind))
        if config.mlp_bias:
            biases = tuple(SourceTensor(f"{source}.bias", shape[:1]) for source in sources)
            found.append(Rule(f"mlp.{target}.bias", biases, layer, row_split(split)))
    return found


def _mlp_layer(config: ModelConfig) -> LinearLayer:
    return LinearLayer(norm=config.sublayer_norms[2])


def experts(config: ModelConfig, layer: int) -> list[Rule]:
    """Return the conversion rules of a layer's router and experts, which are stacked.

    The rows of `fc` are w3 (linear), then w1 (activated); `proj` is w2.
    """
    hidden, inter, count = config.hidden_size, config.intermediate_size, config.num_experts
    source, linear = f"model.layers.{layer}.block_sparse_moe", _mlp_layer(config)

    def stacked(shape: tuple[int, int], *names: str) -> tuple[SourceTensor, ...]:
        return tuple(SourceTensor(f"{source}.experts.{e}.{name}.weight", shape) for e in range(count) for name in names)

    return [
        Rule("mlp.router.weight", (SourceTensor(f"{source}.gate.weight", (count, hidden)),), layer, dtype="F32"),
        Rule("mlp.fc.weight", stacked((inter, hidden), "w3", "w1"), layer, Split.ROWS, linear, count),
        Rule("mlp.proj.weight", stacked((hidden, inter), "w2"), layer, Split.COLUMNS, linear, count),
    ]


def decoder_skips(config: ModelConfig) -> list[Skip]:
    found = [
        Skip(r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "computed from rope_theta"),
        Skip(r"v_head\..*", "a value head used only in training"),
    ]
    if config.tied_embeddings:
        found.append(Skip(r"lm_head\.weight", "equal to the embedding, which is used"))
    return found
