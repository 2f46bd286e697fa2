# SPDX-License-Identifier: Apache-2.0
"""A target whose texts often repeat themselves, for tests of prompt lookup and lookahead."""

from __future__ import annotations

from pathlib import Path

from tests._support.tiny import make_model, reference_model

CYCLE = 8


def make_looping_model(root: Path) -> Path:
    """Save a random Llama whose head favours a token's successor in a cycle of 8 tokens."""
    import torch

    model = reference_model(make_model(root, "llama", scale=0.1))
    tokens = torch.arange(model.config.vocab_size)
    before = tokens // CYCLE * CYCLE + (tokens - 1) % CYCLE
    with torch.no_grad():
        model.lm_head.weight.copy_(model.get_input_embeddings().weight[before])
    model.save_pretrained(root)
    return root
