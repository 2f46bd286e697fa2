# SPDX-License-Identifier: Apache-2.0
"""Initial EAGLE head in SafeAILab's format: one layer of the target's shape, with its embedding and LM head."""

from __future__ import annotations

from trtspec.methods.eagle import NETS, OPTIONAL, head_rules
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer, plain_layer


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a head without a bias, which some engines do not support."""
    layer = plain_layer(origin.config)
    rules = [rule for rule in head_rules(layer, NETS) if rule.sources[0].name not in OPTIONAL]
    fused = origin.random(layer.hidden_size, 2 * layer.hidden_size)
    fused[:, : layer.hidden_size] /= origin.embedding_size
    config = origin.layer_config(layer, "LlamaForCausalLM", 1) | {"bias": False}
    return InitialDraft(config, origin.fill(rules, {"fc.weight": fused}))


MAKER = Initializer(make)
