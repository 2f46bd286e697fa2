# SPDX-License-Identifier: Apache-2.0
"""Llama 2, 3, 3.1 - 3.3: grouped-query attention, SwiGLU, rotary positions, tied or untied embeddings."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.checkpoint.rules import Rule, Skip
from trtspec.checkpoint.trtllm import DTYPES, EMBEDDING, FINAL_NORM, LM_HEAD, layer_tensor, read_rope_scaling
from trtspec.families.base import Family


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Llama config.json; raises CheckpointError for what cannot be served."""
    hidden, heads = reader.positive("hidden_size"), reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_size = reader.positive("head_dim", max(1, hidden // heads))
    if heads % kv_heads:
        raise reader.refuse(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if "head_dim" not in reader.values and hidden % heads:
        raise reader.refuse(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if head_size % 2:
        raise reader.refuse(f"head size {head_size} is odd; rotary positions need pairs")
    if (act := reader.get("hidden_act", str, "silu")) != "silu":
        raise reader.refuse(f"hidden_act {act!r} is not supported; supported: silu")
    max_positions = reader.positive("max_position_embeddings")
    # transformers 5 gathers what was rope_theta and rope_scaling under rope_parameters
    rope = reader.section("rope_parameters")
    return ModelConfig(
        architecture="LlamaForCausalLM",
        dtype=_dtype(reader, dtype),
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=reader.positive("intermediate_size"),
        hidden_act=act,
        norm_epsilon=reader.get("rms_norm_eps", float),
        max_positions=max_positions,
        rotary_base=(rope or reader).get("rope_theta", float, 10000.0),
        rope_scaling=read_rope_scaling(rope or reader.section("rope_scaling"), max_positions),
        attn_bias=reader.get("attention_bias", bool, False),
        mlp_bias=reader.get("mlp_bias", bool, False),
        tied_embeddings=reader.get("tie_word_embeddings", bool, False),
    )


def _dtype(reader: ConfigReader, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    own = reader.get("dtype", str, reader.values.get("torch_dtype") or "float32")
    # TensorRT-LLM engines compute in 16 bits; a float32 source goes the way its converter's "auto" takes it
    own = "float16" if own == "float32" else own
    if own not in DTYPES:
        raise reader.refuse(f"dtype {own!r} cannot be served; set dtype: {' or '.join(DTYPES)} in the recipe")
    return own


def rules(config: ModelConfig) -> list[Rule]:
    """List every tensor of the converted checkpoint, in file order."""
    embedding = (config.vocab_size, config.hidden_size)
    found = [Rule(EMBEDDING, (("model.embed_tokens.weight", embedding),))]
    for layer in range(config.num_layers):
        found += _layer_rules(config, layer)
    found.append(Rule(FINAL_NORM, (("model.norm.weight", (config.hidden_size,)),)))
    if not config.tied_embeddings:  # TensorRT-LLM takes an absent lm_head from the embedding
        found.append(Rule(LM_HEAD, (("lm_head.weight", embedding),)))
    return found


def _layer_rules(config: ModelConfig, layer: int) -> list[Rule]:
    hidden, inter = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    attention = {
        "attention.qkv": (("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)),
        "attention.dense": (("self_attn.o_proj", hidden),),
    }
    mlp = {
        "mlp.fc": (("mlp.gate_proj", inter),),
        "mlp.gate": (("mlp.up_proj", inter),),
        "mlp.proj": (("mlp.down_proj", hidden),),
    }
    columns = {"attention.dense": queries, "mlp.proj": inter}
    norms = (("input_layernorm", "input_layernorm"), ("post_layernorm", "post_attention_layernorm"))
    source = f"model.layers.{layer}"
    found = [
        Rule(layer_tensor(layer, f"{target}.weight"), ((f"{source}.{name}.weight", (hidden,)),))
        for target, name in norms
    ]
    for group, has_bias in ((attention, config.attn_bias), (mlp, config.mlp_bias)):
        for target, parts in group.items():
            width = columns.get(target, hidden)
            weights = tuple((f"{source}.{name}.weight", (rows, width)) for name, rows in parts)
            found.append(Rule(layer_tensor(layer, f"{target}.weight"), weights))
            if has_bias:
                biases = tuple((f"{source}.{name}.bias", (rows,)) for name, rows in parts)
                found.append(Rule(layer_tensor(layer, f"{target}.bias"), biases))
    return found


def skips(config: ModelConfig) -> list[Skip]:
    """Name what older exports hold beyond the rules."""
    found = [Skip(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "computed from rope_theta")]
    if config.tied_embeddings:
        found.append(Skip(r"lm_head\.weight", "tied to the embedding"))
    return found


FAMILY = Family(architectures=("LlamaForCausalLM",), read=read, rules=rules, skips=skips)
