# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest

from trtspec.backends.base import backends_for_method
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover
from trtspec.methods.base import Method
from trtspec.planning.prediction.speedup import expected_speedup, expected_tokens

METHODS: dict[str, Method] = discover("trtspec.methods", "METHOD")


@pytest.mark.parametrize("name", METHODS)
def test_method_declaration_is_consistent(name: str) -> None:
    method = METHODS[name]
    assert method.summary
    assert (method.drafts_with == "head") == (method.read_head is not None)
    assert method.default_draft_len in method.draft_lens or (not method.draft_lens and not method.default_draft_len)
    options = method.parse({})  # no option is required
    assert all(field.description for field in method.options.model_fields.values())
    for draft_len in method.draft_lens or (0,):
        draft_shape = method.draft_shape(options, draft_len)
        assert 0 <= draft_shape.max_depth <= draft_shape.max_tokens
        assert draft_shape.max_depth == draft_len or not method.draft_lens
    drafters = discover("trtspec.methods", "DRAFTER", "drafter")
    assert ("embedded" in backends_for_method(name)) == (name in drafters)


def test_out_of_range_options_are_rejected() -> None:
    with pytest.raises(TrtspecError, match=r"speculation\.options\.stop_below: must be less than 1"):
        METHODS["draft_target"].parse({"stop_below": 2.0})


@pytest.mark.parametrize("draft_len", [0, 1, 5])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_expected_tokens_match_a_simulation(rate: float, draft_len: int) -> None:
    """The oracle is a simulation: drafts are accepted one by one until the first rejection."""
    chance = random.Random(0)
    steps = 20_000

    def step() -> int:
        for place in range(draft_len):
            if chance.random() >= rate:
                return place + 1
        return draft_len + 1

    mean = sum(step() for _ in range(steps)) / steps
    assert expected_tokens(rate, draft_len) == pytest.approx(mean, rel=0.02)


def test_expected_speedup_follows_from_acceptance_and_draft_cost() -> None:
    assert expected_speedup(0.0, 5, 0.1) == pytest.approx(
        1 / 1.5
    )  # no draft is accepted, but five draft steps cost time
    assert expected_speedup(1.0, 5, 0.1) == pytest.approx(6 / 1.5)
    assert expected_speedup(0.8, 0, 0.1) == 1.0  # nothing drafted
    assert expected_speedup(0.5, 1, 0.0) == 1.5
