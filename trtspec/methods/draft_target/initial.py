# SPDX-License-Identifier: Apache-2.0
"""Initial draft model: a small Llama with the target's vocabulary.

Its embedding and LM head are projections of the target's onto the principal directions of their rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.errors import TrtspecError
from trtspec.families.decoder import decoder_rules
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer, plain_layer

SHARE = 4  # the target's width and number of layers are divided by this


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a model of a quarter of the target's width and layers, unless sizes are given."""
    config = _config(origin)
    embedding = _narrowed(origin.embedding, config.hidden_size)
    given = {
        "model.embed_tokens.weight": embedding / embedding.pow(2).mean().sqrt(),
        "lm_head.weight": _narrowed(origin.lm_head, config.hidden_size),
    }
    document = origin.layer_config(config, "LlamaForCausalLM", config.num_layers)
    return InitialDraft(document, origin.fill(decoder_rules(config), given), has_tokenizer=True)


def _config(origin: DraftInitializer) -> ModelConfig:
    target, sizes = origin.config, origin.sizes
    size = target.head_size
    width = sizes.hidden_size or max(1, round(target.hidden_size / SHARE / size)) * size
    if width % size or width > target.hidden_size:
        message = f"--hidden-size {width} is not a multiple of the head size {size} up to {target.hidden_size}"
        raise TrtspecError(message, hint=f"use a multiple of {size}, at most {target.hidden_size}")
    heads = width // size
    most = max(1, heads * target.num_kv_heads // target.num_heads)
    return replace(
        plain_layer(target),
        hidden_size=width,
        num_layers=sizes.layers or max(1, target.num_layers // SHARE),
        num_heads=heads,
        num_kv_heads=next(count for count in range(most, 0, -1) if heads % count == 0),
        intermediate_size=max(1, plain_layer(target).intermediate_size * width // target.hidden_size),
    )


def _narrowed(rows: Tensor, width: int) -> Tensor:
    """Project rows [n, hidden] onto their principal directions; return [n, width]."""
    directions: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors
    return rows @ directions[:, -width:]


MAKER = Initializer(make, ("layers", "hidden_size"))
