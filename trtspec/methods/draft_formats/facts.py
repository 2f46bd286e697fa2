# SPDX-License-Identifier: Apache-2.0
"""Facts: the contents of a draft's config.json in neutral form, independent of its dialect.

Facts come from the methods' readers, which recipes also use. The target's layers whose hidden states are read are
numbered by their inputs: 0 is the embedding, the number of layers is the output of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source import Source
from trtspec.methods.dflash.net import Keys, read_block_net
from trtspec.methods.eagle3 import find_names, named_aux_layers, read_head_config
from trtspec.methods.head_checks import mask_token
from trtspec.methods.medusa.heads import find_heads

Facts = dict[str, Any]

# A fact about the target that no dialect computes with; it is written only for dialects that have a key for it.
SOFT = "num_target_layers"


def _eagle3(source: Source, target: ModelConfig) -> Facts:
    """Return the facts of an EAGLE-3 head; `aux_layers` is None for EAGLE-3's default layers."""
    head = read_head_config(source, find_names(source), target)
    switches = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
    return {
        "aux_layers": named_aux_layers(source) or None,
        "draft_vocab_size": head.layer.vocab_size,
        "target_hidden_size": head.target_hidden_size,
        SOFT: source.config.get(SOFT),
        **{switch: getattr(head, switch) for switch in switches},
    }


def _p_eagle(source: Source, target: ModelConfig) -> Facts:
    return {**_eagle3(source, target), "mask_token": mask_token(source)}


def _block(kind: str) -> Callable[[Source, ModelConfig], Facts]:
    def read(source: Source, target: ModelConfig) -> Facts:
        """Return the facts of a block net; `sliding_causal` is None without sliding-window layers."""
        net, keys = read_block_net(source, target.dtype, kind), Keys(source)
        slides = "sliding_attention" in keys.layer.get("layer_types", list, [])
        non_causal = keys.get("sliding_window_non_causal", bool, not keys.speculators)
        return {
            "block_size": net.block_size,
            "mask_token": net.mask_token,
            "hidden_layers": tuple(number + 1 for number in net.target_layers),
            SOFT: net.num_target_layers or None,
            "draft_vocab_size": net.draft_vocab_size,
            "target_hidden_size": net.target_hidden_size,
            "sample_from_anchor": net.drafts == net.block_size,
            "causal": keys.get("causal", bool, False),
            "sliding_causal": not non_causal if slides else None,
            "markov_rank": net.markov_rank or None,
            "markov_head": net.markov_head or None,
            "has_confidence": net.confidence_width > 0 if kind == "dspark" else None,
            "confidence_with_markov": net.confidence_width > net.layer.hidden_size if net.confidence_width else None,
        }

    return read


def _medusa(source: Source, target: ModelConfig) -> Facts:
    heads = find_heads(source)
    return {
        "num_heads": heads.num_heads,
        "num_layers": heads.num_layers,
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size or target.vocab_size,
        "has_bias": heads.has_bias,
        "shares_lm_head": heads.shared is not None,
        SOFT: None,
    }


READERS: Mapping[str, Callable[[Source, ModelConfig], Facts]] = {
    "eagle3": _eagle3,
    "p_eagle": _p_eagle,
    "dflash": _block("dflash"),
    "dspark": _block("dspark"),
    "medusa": _medusa,
}


def neutral(fact: str, layer: Mapping[str, Any]) -> Any:
    """Return the neutral value of a fact, which is the one of the unmodified method, for layers of that config."""
    sizes = {"draft_vocab_size": "vocab_size", "target_hidden_size": "hidden_size"}
    return layer.get(sizes[fact]) if fact in sizes else None
