# SPDX-License-Identifier: Apache-2.0
"""Mixtral 8x7B and 8x22B: Mistral's attention, and an MLP of experts of which a router picks some for each token."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.checkpoint.rules import Part, Rule
from trtspec.checkpoint.trtllm import MOST_LAYERS
from trtspec.families.base import Family
from trtspec.families.decoder import assemble, attention, decoder_skips, read_decoder, sliding_window

MOST_EXPERTS = 32_768  # in all layers together


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Mixtral config.json."""
    layers = reader.positive("num_hidden_layers", most=MOST_LAYERS)
    experts = reader.positive("num_local_experts", most=MOST_EXPERTS // layers)
    return read_decoder(
        reader,
        dtype,
        hidden_act="swiglu",
        num_experts=experts,
        experts_per_token=reader.positive("num_experts_per_tok", most=experts),
        sliding_window=sliding_window(reader),
    )


def rules(config: ModelConfig) -> list[Rule]:
    """List every tensor of the converted checkpoint, in file order."""
    return assemble(config, [attention(config, layer) + _experts(config, layer) for layer in range(config.num_layers)])


def _experts(config: ModelConfig, layer: int) -> list[Rule]:
    """Return a layer's router and stacked experts: `fc` is w3 (linear) above w1 (activated), `proj` is w2."""
    hidden, inter, count = config.hidden_size, config.intermediate_size, config.num_experts
    source = f"model.layers.{layer}.block_sparse_moe"

    def stacked(shape: tuple[int, int], *names: str) -> tuple[Part, ...]:
        return tuple(Part(f"{source}.experts.{e}.{name}.weight", shape) for e in range(count) for name in names)

    return [
        Rule("mlp.router.weight", (Part(f"{source}.gate.weight", (count, hidden)),), layer, dtype="F32"),
        Rule("mlp.fc.weight", stacked((inter, hidden), "w3", "w1"), layer, experts=count),
        Rule("mlp.proj.weight", stacked((hidden, inter), "w2"), layer, experts=count),
    ]


FAMILY = Family(architectures=("MixtralForCausalLM",), read=read, rules=rules, skips=decoder_skips)
