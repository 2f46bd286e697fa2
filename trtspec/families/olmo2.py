# SPDX-License-Identifier: Apache-2.0
"""OLMo 2: Llama with norms after attention and MLP instead of before them, and with query and key norms over all heads.

TensorRT-LLM builds no engines for this family. The torch engine and backends that load unchanged sources support it.
"""

from __future__ import annotations

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder

# The defaults of transformers' Olmo2Config, 5.23.
DEFAULTS = {
    "vocab_size": 50_304, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    bias = reader.get("attention_bias", bool, False)
    return read_decoder(
        reader,
        dtype,
        attn_bias=bias,
        dense_bias=bias,
        qk_norm=True,
        qk_norm_over_heads=True,
        input_norms=False,
        inner_norms=True,
    )


FAMILY = Family(architectures=("Olmo2ForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
