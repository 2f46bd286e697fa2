# SPDX-License-Identifier: Apache-2.0
"""Initial P-EAGLE net in SpecForge's dialect: an EAGLE-3 head of several layers with a hidden state for mask tokens."""

from __future__ import annotations

from trtspec.methods.eagle3.head import Eagle3Names, head_rules
from trtspec.methods.eagle3.initial import initial_config, initial_head, initial_tensors
from trtspec.methods.p_eagle import further_rules
from trtspec.training.initialization import DraftInitializer, InitialDraft, Initializer


def make(origin: DraftInitializer) -> InitialDraft:
    """Return a net of `origin.num_layers` layers."""
    head, tensors = initial_head(origin, origin.num_layers), initial_tensors(origin)
    state = (1, 1, len(head.aux_layers) * head.target_hidden_size)
    rules = [*head_rules(head), *further_rules(head, state, Eagle3Names())]
    config = initial_config(origin, "PEagleDraftModel", origin.num_layers) | {"mask_token_id": origin.unused_token}
    return InitialDraft(config, origin.fill(rules, tensors) | {"t2d": tensors["t2d"]})


MAKER = Initializer(make, ("layers", "draft_vocab"))
