# SPDX-License-Identifier: Apache-2.0
"""Drafters that can be trained for the quickstart target: a net for each method, with its config.json.

The sizes are chosen for a CPU, where a draft step has to be cheap and the files are committed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from draft_nets import Eagle3Net, EagleNet, MedusaHeads, RecurrentDrafter
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

MEDUSA_HEADS, RECURRENT_STEPS, EAGLE_STEPS = 4, 4, 5
EAGLE_MLP = 512
AUX_LAYERS, DRAFT_VOCAB = [1, 3, 4], 256

Document = dict[str, object]


def medusa(target: LlamaForCausalLM, own: torch.Tensor) -> tuple[nn.Module, Document]:
    return MedusaHeads(target.lm_head.weight, MEDUSA_HEADS), {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "base_model_name_or_path": "quickstart-target",
        "medusa_num_heads": MEDUSA_HEADS,
        "medusa_num_layers": 1,
        "medusa_fc_bias": True,
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
        "torch_dtype": "bfloat16",
    }


def redrafter(target: LlamaForCausalLM, own: torch.Tensor) -> tuple[nn.Module, Document]:
    width = target.config.hidden_size
    return RecurrentDrafter(target, RECURRENT_STEPS), {
        "model_type": "recurrent_drafting_drafter",
        "hidden_size": width,
        "exit_dim": width,
        "num_draft_layers": 1,
        "rnn": True,
        "vocab_size": target.config.vocab_size,
        "torch_dtype": "bfloat16",
    }


def eagle(target: LlamaForCausalLM, own: torch.Tensor) -> tuple[nn.Module, Document]:
    net = EagleNet(layer_shape(target), target, EAGLE_STEPS)
    return net, layer_config(target.config, "LlamaForCausalLM") | {"bias": False}


def eagle3(target: LlamaForCausalLM, own: torch.Tensor) -> tuple[nn.Module, Document]:
    net = Eagle3Net(layer_shape(target), AUX_LAYERS, target, frequent_tokens(own), EAGLE_STEPS)
    return net, layer_config(target.config, "LlamaForCausalLMEagle3") | {
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS, "use_aux_hidden_state": True},
    }


def frequent_tokens(own: torch.Tensor) -> torch.Tensor:
    """Return the DRAFT_VOCAB tokens that are the most frequent in the target's own texts, ascending."""
    return own.flatten().bincount().topk(DRAFT_VOCAB).indices.sort().values


def layer_shape(target: LlamaForCausalLM) -> LlamaConfig:
    """Return the shape of a drafting layer: the target's, but for the width of its MLP."""
    return LlamaConfig(**target.config.to_diff_dict() | {"intermediate_size": EAGLE_MLP})


def layer_config(target: LlamaConfig, architecture: str) -> Document:
    same = ("model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
            "rms_norm_eps", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")  # fmt: skip
    return {
        "architectures": [architecture],
        **{key: getattr(target, key) for key in same},
        "num_hidden_layers": 1,
        "intermediate_size": EAGLE_MLP,
        "rope_theta": target.rope_parameters["rope_theta"],
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


# Each takes the target and its own texts, tokens [rows, length].
KINDS: dict[str, Callable[[LlamaForCausalLM, torch.Tensor], tuple[nn.Module, Document]]] = {
    kind.__name__: kind for kind in (medusa, redrafter, eagle, eagle3)
}
FILES = dict.fromkeys(KINDS, "model.safetensors") | {"medusa": "medusa_lm_head.safetensors"}
