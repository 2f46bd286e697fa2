# SPDX-License-Identifier: Apache-2.0
"""Initial recurrent drafter in apple/ml-recurrent-drafter's format, which starts with the output of the LM head.

Its width is the target's, not twice as in the reference, because each drafted token loads its LM head.
"""

from __future__ import annotations

import torch

from trtspec.methods.redrafter import PROJECTIONS, STACKS, RedrafterHeadConfig
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer

LAYERS = 1


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a drafter whose blocks are the identity and whose projection selects the target's hidden state."""
    config, layers = origin.config, origin.sizes.layers or LAYERS
    hidden, vocab = config.hidden_size, config.vocab_size
    head = RedrafterHeadConfig(hidden, vocab, hidden, layers, is_rnn=True)
    given = {f"{STACKS[0]}.{layer}.linear.weight": torch.zeros(hidden, hidden) for layer in range(layers)} | {
        f"{PROJECTIONS[0]}.weight": torch.eye(hidden, 2 * hidden),
        f"{STACKS[0]}.{layers}.weight": origin.lm_head,
        "rnn_w.weight": origin.random(hidden, hidden) / origin.embedding_size,
    }
    keys = {
        "model_type": "recurrent_drafting_drafter",
        "hidden_size": hidden,
        "exit_dim": hidden,
        "num_draft_layers": layers,
        "rnn": True,
        "vocab_size": vocab,
        "torch_dtype": config.dtype,
    }
    return InitialDraft(keys, origin.fill(head.rules(), given))


MAKER = Initializer(make, ("layers",))
