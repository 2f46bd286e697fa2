# SPDX-License-Identifier: Apache-2.0
"""Initial P-EAGLE net in SpecForge's dialect: an EAGLE-3 head of several layers with a hidden state for mask tokens."""

from __future__ import annotations

from trtspec.methods.eagle3.head import Names, head_rules
from trtspec.methods.eagle3.initial import config_of, given, head_of
from trtspec.methods.p_eagle import further_rules
from trtspec.training.initialization import Blank, Maker, Origin


def make(origin: Origin) -> Blank:
    """Return a net of `origin.num_layers` layers."""
    head, tensors = head_of(origin, origin.num_layers), given(origin)
    state = (1, 1, len(head.aux_layers) * head.target_hidden_size)
    rules = [*head_rules(head), *further_rules(head, state, Names())]
    config = config_of(origin, "PEagleDraftModel", origin.num_layers) | {"mask_token_id": origin.unused_token}
    return Blank(config, origin.fill(rules, tensors) | {"t2d": tensors["t2d"]})


MAKER = Maker(make, ("layers", "draft_vocab"))
