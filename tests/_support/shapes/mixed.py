# SPDX-License-Identifier: Apache-2.0
"""Tensors of models of unsupported families, and of nets for them: mixtures of experts, latent attention, hybrids.

Names and shapes match the published files; tests/test_catalogue.py checks the parameter counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from tests._support.shapes.layouts import INNER_NORMS, NORMS, Config, Tensor, attention, mlp

MXFP4_BLOCK = 32  # weights that share a scale; two weights are one byte
FP8_BLOCK = 128  # rows and columns that share a scale


def qwen3_moe(config: Config) -> Iterator[Tensor]:
    """Yield Qwen3's mixture: every layer has a router and experts with three projections."""
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    yield from _ends(config, "model.")
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        yield from attention({**config, "model_type": "qwen3"}, f"{prefix}self_attn.", hidden)
        yield from _norms(prefix, hidden)
        yield Tensor(f"{prefix}mlp.gate.weight", (config["num_experts"], hidden))
        for expert in range(config["num_experts"]):
            yield from mlp({"hidden_size": hidden, "intermediate_size": inner}, f"{prefix}mlp.experts.{expert}.")


def gpt_oss(config: Config) -> Iterator[Tensor]:
    """Yield gpt-oss: experts stacked in MXFP4, the rest in 16 bits, a sink for each head."""
    hidden, heads, size = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    experts, inner = config["num_local_experts"], config.get("intermediate_size", hidden)
    rows = {"q": heads * size, "k": config["num_key_value_heads"] * size}
    rows["v"] = rows["k"]
    yield from _ends(config, "model.")
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        for name, count in rows.items():
            yield Tensor(f"{prefix}self_attn.{name}_proj.weight", (count, hidden))
            yield Tensor(f"{prefix}self_attn.{name}_proj.bias", (count,))
        yield Tensor(f"{prefix}self_attn.o_proj.weight", (hidden, heads * size))
        yield Tensor(f"{prefix}self_attn.o_proj.bias", (hidden,))
        yield Tensor(f"{prefix}self_attn.sinks", (heads,))
        yield Tensor(f"{prefix}mlp.router.weight", (experts, hidden))
        yield Tensor(f"{prefix}mlp.router.bias", (experts,))
        for name, count, width in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            blocks = width // MXFP4_BLOCK
            yield Tensor(f"{prefix}mlp.experts.{name}_blocks", (experts, count, blocks, MXFP4_BLOCK // 2), "U8")
            yield Tensor(f"{prefix}mlp.experts.{name}_scales", (experts, count, blocks), "U8")
            yield Tensor(f"{prefix}mlp.experts.{name}_bias", (experts, count))
        yield from _norms(prefix, hidden)


def deepseek_v3(config: Config) -> Iterator[Tensor]:
    """Yield DeepSeek V3: latent attention, block FP8, and one MTP layer after the others."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    yield from _ends(config, "model.")
    for number in range(layers + config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{number}."
        yield from _latent_attention(config, f"{prefix}self_attn.")
        yield from _norms(prefix, hidden)
        if number < config["first_k_dense_replace"]:
            yield from _fp8_mlp(hidden, config["intermediate_size"], f"{prefix}mlp.")
        else:
            yield from _deepseek_experts(config, f"{prefix}mlp.")
        if number >= layers:
            yield from (Tensor(f"{prefix}{name}.weight", (hidden,)) for name in ("enorm", "hnorm", "shared_head.norm"))
            yield Tensor(f"{prefix}eh_proj.weight", (hidden, 2 * hidden))
            yield Tensor(f"{prefix}embed_tokens.weight", (config["vocab_size"], hidden))
            yield Tensor(f"{prefix}shared_head.head.weight", (config["vocab_size"], hidden))


def _latent_attention(config: Config, prefix: str) -> Iterator[Tensor]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query, latent, rotated = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    yield from _fp8(f"{prefix}q_a_proj", query, hidden)
    yield Tensor(f"{prefix}q_a_layernorm.weight", (query,))
    yield from _fp8(f"{prefix}q_b_proj", heads * (plain + rotated), query)
    yield from _fp8(f"{prefix}kv_a_proj_with_mqa", latent + rotated, hidden)
    yield Tensor(f"{prefix}kv_a_layernorm.weight", (latent,))
    yield from _fp8(f"{prefix}kv_b_proj", heads * (plain + value), latent)
    yield from _fp8(f"{prefix}o_proj", hidden, heads * value)


def _deepseek_experts(config: Config, prefix: str) -> Iterator[Tensor]:
    hidden, inner, count = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    yield Tensor(f"{prefix}gate.weight", (count, hidden))
    yield Tensor(f"{prefix}gate.e_score_correction_bias", (count,), "F32")
    for expert in range(count):
        yield from _fp8_mlp(hidden, inner, f"{prefix}experts.{expert}.")
    yield from _fp8_mlp(hidden, config["n_shared_experts"] * inner, f"{prefix}shared_experts.")


def _fp8_mlp(hidden: int, inner: int, prefix: str) -> Iterator[Tensor]:
    yield from _fp8(f"{prefix}gate_proj", inner, hidden)
    yield from _fp8(f"{prefix}up_proj", inner, hidden)
    yield from _fp8(f"{prefix}down_proj", hidden, inner)


def _fp8(name: str, rows: int, columns: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), "F8_E4M3")
    yield Tensor(f"{name}.weight_scale_inv", (ceil(rows / FP8_BLOCK), ceil(columns / FP8_BLOCK)), "F32")


def qwen3_5(config: Config) -> Iterator[Tensor]:
    """Yield Qwen3.5: three of four layers with linear attention, an MTP layer, and a vision tower."""
    text, inner = config["text_config"], "model.language_model."
    hidden = text["hidden_size"]
    yield from _ends(text, inner)
    for number in range(text["num_hidden_layers"]):
        prefix = f"{inner}layers.{number}."
        is_full = (number + 1) % text["full_attention_interval"] == 0
        yield from (
            _gated_attention(text, f"{prefix}self_attn.") if is_full else _delta_net(text, f"{prefix}linear_attn.")
        )
        yield from mlp(text, f"{prefix}mlp.")
        yield from _norms(prefix, hidden)
    yield Tensor("mtp.fc.weight", (hidden, 2 * hidden))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield Tensor(f"mtp.{name}.weight", (hidden,))
    yield from _gated_attention(text, "mtp.layers.0.self_attn.")
    yield from mlp(text, "mtp.layers.0.mlp.")
    yield from _norms("mtp.layers.0.", hidden)
    yield from _qwen_vision(config["vision_config"])


def _gated_attention(text: Config, prefix: str) -> Iterator[Tensor]:
    """Yield attention with a gate as wide as the queries."""
    hidden, size = text["hidden_size"], text["head_dim"]
    heads, kv_heads = text["num_attention_heads"], text["num_key_value_heads"]
    yield Tensor(f"{prefix}q_proj.weight", (2 * heads * size, hidden))
    yield from (Tensor(f"{prefix}{name}_proj.weight", (kv_heads * size, hidden)) for name in "kv")
    yield Tensor(f"{prefix}o_proj.weight", (hidden, heads * size))
    yield from (Tensor(f"{prefix}{name}_norm.weight", (size,)) for name in "qk")


def _delta_net(text: Config, prefix: str) -> Iterator[Tensor]:
    hidden, values = text["hidden_size"], text["linear_num_value_heads"]
    keys = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    width = values * text["linear_value_head_dim"]
    yield Tensor(f"{prefix}in_proj_qkv.weight", (2 * keys + width, hidden))
    yield Tensor(f"{prefix}in_proj_z.weight", (width, hidden))
    yield from (Tensor(f"{prefix}in_proj_{name}.weight", (values, hidden)) for name in "ab")
    yield Tensor(f"{prefix}conv1d.weight", (2 * keys + width, 1, text["linear_conv_kernel_dim"]))
    yield from (Tensor(f"{prefix}{name}", (values,)) for name in ("A_log", "dt_bias"))
    yield Tensor(f"{prefix}norm.weight", (text["linear_value_head_dim"],))
    yield Tensor(f"{prefix}out_proj.weight", (hidden, width))


def _qwen_vision(vision: Config) -> Iterator[Tensor]:
    hidden, inner, merged = vision["hidden_size"], vision["intermediate_size"], vision["spatial_merge_size"] ** 2
    patch = (vision["in_channels"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    shapes = {"patch_embed.proj": (hidden, *patch), "pos_embed": (vision["num_position_embeddings"], hidden)}
    for number in range(vision["depth"]):
        prefix = f"blocks.{number}."
        shapes |= {f"{prefix}attn.qkv": (3 * hidden, hidden), f"{prefix}attn.proj": (hidden, hidden)}
        shapes |= {f"{prefix}mlp.linear_fc1": (inner, hidden), f"{prefix}mlp.linear_fc2": (hidden, inner)}
        shapes |= {f"{prefix}norm1": (hidden,), f"{prefix}norm2": (hidden,)}
    wide = merged * hidden
    shapes |= {"merger.norm": (hidden,), "merger.linear_fc1": (wide, wide)}
    shapes |= {"merger.linear_fc2": (vision["out_hidden_size"], wide)}
    for name, shape in shapes.items():
        yield Tensor(f"model.visual.{name}.weight", shape)
        if name != "pos_embed":
            yield Tensor(f"model.visual.{name}.bias", shape[:1])


def gemma4(config: Config) -> Iterator[Tensor]:
    """Yield the text model of a dense Gemma 4; its full-attention layers have wider heads and share keys and values."""
    text, inner = config["text_config"], "model.language_model."
    hidden = text["hidden_size"]
    yield from _ends({**text, "tie_word_embeddings": True}, inner)
    for number, kind in enumerate(text["layer_types"]):
        prefix = f"{inner}layers.{number}."
        is_full = kind == "full_attention"
        size = text["global_head_dim"] if is_full else text["head_dim"]
        rows = text["num_global_key_value_heads"] if is_full else text["num_key_value_heads"]
        yield Tensor(f"{prefix}self_attn.q_proj.weight", (text["num_attention_heads"] * size, hidden))
        for name in "k" if is_full and text["attention_k_eq_v"] else "kv":
            yield Tensor(f"{prefix}self_attn.{name}_proj.weight", (rows * size, hidden))
        yield Tensor(f"{prefix}self_attn.o_proj.weight", (hidden, text["num_attention_heads"] * size))
        yield from (Tensor(f"{prefix}self_attn.{name}_norm.weight", (size,)) for name in "qk")
        yield from mlp(text, f"{prefix}mlp.")
        yield from _norms(prefix, hidden)
        yield from (Tensor(f"{prefix}{norm}.weight", (hidden,)) for norm in INNER_NORMS)


def gemma4_assistant(config: Config) -> Iterator[Tensor]:
    """Yield an assistant: layers without keys and values, between projections from and to the target's width."""
    text, outer = config["text_config"], config["backbone_hidden_size"]
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    yield from _ends({**text, "tie_word_embeddings": True}, "model.")
    for number, kind in enumerate(text["layer_types"]):
        prefix = f"model.layers.{number}."
        size = text["global_head_dim"] if kind == "full_attention" else text["head_dim"]
        yield Tensor(f"{prefix}self_attn.q_proj.weight", (heads * size, hidden))
        yield Tensor(f"{prefix}self_attn.q_norm.weight", (size,))
        yield Tensor(f"{prefix}self_attn.o_proj.weight", (hidden, heads * size))
        yield from mlp(text, f"{prefix}mlp.")
        yield from (Tensor(f"{prefix}{norm}.weight", (hidden,)) for norm in (*NORMS, *INNER_NORMS))
        yield Tensor(f"{prefix}layer_scalar", (1,))
    yield Tensor("pre_projection.weight", (hidden, 2 * outer))
    yield Tensor("post_projection.weight", (outer, hidden))


def gemma3(config: Config) -> Iterator[Tensor]:
    """Yield Gemma 3 with its vision tower; its text config relies on defaults of transformers."""
    text, vision, inner = config["text_config"], config["vision_config"], "language_model.model."
    hidden, seen = text["hidden_size"], vision["hidden_size"]
    yield from _ends({**text, "vocab_size": config["vocab_size"], "tie_word_embeddings": True}, inner)
    for number in range(text["num_hidden_layers"]):
        prefix = f"{inner}layers.{number}."
        yield from attention(text, f"{prefix}self_attn.", hidden)
        yield from mlp(text, f"{prefix}mlp.")
        yield from (Tensor(f"{prefix}{norm}.weight", (hidden,)) for norm in (*NORMS, *INNER_NORMS))
    tower, patch, side = "vision_tower.vision_model.", vision["patch_size"], vision["image_size"]
    yield Tensor(f"{tower}embeddings.patch_embedding.weight", (seen, 3, patch, patch))
    yield Tensor(f"{tower}embeddings.patch_embedding.bias", (seen,))
    yield Tensor(f"{tower}embeddings.position_embedding.weight", ((side // patch) ** 2, seen))
    for number in range(vision["num_hidden_layers"]):
        yield from _vision_layer(vision, f"{tower}encoder.layers.{number}.", "out_proj", ("layer_norm1", "layer_norm2"))
    yield from _with_bias(f"{tower}post_layernorm", (seen,))
    yield Tensor("multi_modal_projector.mm_input_projection_weight", (seen, hidden))
    yield Tensor("multi_modal_projector.mm_soft_emb_norm.weight", (seen,))


def llama4(config: Config) -> Iterator[Tensor]:
    """Yield Llama 4 Scout with its vision tower: a layer's experts in two tensors, and a shared expert."""
    text, vision, inner = config["text_config"], config["vision_config"], "language_model.model."
    hidden, experts, width = text["hidden_size"], text["num_local_experts"], text["intermediate_size"]
    yield from _ends({**text, "tie_word_embeddings": True}, inner)
    yield Tensor("language_model.lm_head.weight", (text["vocab_size"], hidden))
    for number in range(text["num_hidden_layers"]):
        prefix = f"{inner}layers.{number}."
        yield from attention(text, f"{prefix}self_attn.", hidden)
        yield from _norms(prefix, hidden)
        yield Tensor(f"{prefix}feed_forward.router.weight", (experts, hidden))
        yield Tensor(f"{prefix}feed_forward.experts.gate_up_proj", (experts, hidden, 2 * width))
        yield Tensor(f"{prefix}feed_forward.experts.down_proj", (experts, width, hidden))
        yield from mlp(text, f"{prefix}feed_forward.shared_expert.")
    yield from _llama4_vision(vision)
    yield Tensor("multi_modal_projector.linear_1.weight", (hidden, vision["vision_output_dim"]))


def _llama4_vision(vision: Config) -> Iterator[Tensor]:
    seen, patch, between = vision["hidden_size"], vision["patch_size"], vision["projector_input_dim"]
    yield Tensor("vision_model.class_embedding", (seen,))
    yield Tensor("vision_model.positional_embedding_vlm", ((vision["image_size"] // patch) ** 2 + 1, seen))
    yield Tensor("vision_model.patch_embedding.linear.weight", (seen, 3 * patch**2))
    for name in ("layernorm_pre", "layernorm_post"):
        yield from _with_bias(f"vision_model.{name}", (seen,))
    for number in range(vision["num_hidden_layers"]):
        yield from _vision_layer(vision, f"vision_model.model.layers.{number}.", "o_proj", NORMS)
    yield Tensor("vision_model.vision_adapter.mlp.fc1.weight", (between, vision["intermediate_size"]))
    yield Tensor("vision_model.vision_adapter.mlp.fc2.weight", (vision["projector_output_dim"], between))


def _vision_layer(vision: Config, prefix: str, output: str, norms: tuple[str, ...]) -> Iterator[Tensor]:
    """Yield a layer of a vision tower, in which every linear layer and norm has a bias."""
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    for name in ("q_proj", "k_proj", "v_proj", output):
        yield from _with_bias(f"{prefix}self_attn.{name}", (hidden, hidden))
    yield from _with_bias(f"{prefix}mlp.fc1", (inner, hidden))
    yield from _with_bias(f"{prefix}mlp.fc2", (hidden, inner))
    for norm in norms:
        yield from _with_bias(f"{prefix}{norm}", (hidden,))


def _with_bias(name: str, shape: tuple[int, ...]) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", shape)
    yield Tensor(f"{name}.bias", shape[:1])


def dflash(config: Config) -> Iterator[Tensor]:
    """Yield a block net: layers that read joined hidden states; embedding and head are the target's."""
    hidden, read = config["hidden_size"], config["num_read_layers"]
    for number in range(config["num_hidden_layers"]):
        yield from attention(config, f"layers.{number}.self_attn.", hidden)
        yield from mlp(config, f"layers.{number}.mlp.")
        yield from _norms(f"layers.{number}.", hidden)
    yield Tensor("fc.weight", (hidden, read * hidden))
    yield from (Tensor(f"{name}.weight", (hidden,)) for name in ("hidden_norm", "norm"))


def _ends(config: Config, prefix: str) -> Iterator[Tensor]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield Tensor(f"{prefix}embed_tokens.weight", (vocab, hidden))
    yield Tensor(f"{prefix}norm.weight", (hidden,))
    if not config.get("tie_word_embeddings", False):
        yield Tensor("lm_head.weight", (vocab, hidden))


def _norms(prefix: str, hidden: int) -> Iterator[Tensor]:
    yield from (Tensor(f"{prefix}{norm}.weight", (hidden,)) for norm in NORMS)


MIXED: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    each.__name__: each
    for each in (qwen3_moe, gpt_oss, deepseek_v3, qwen3_5, gemma3, gemma4, gemma4_assistant, llama4, dflash)
}
