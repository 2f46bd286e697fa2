# SPDX-License-Identifier: Apache-2.0
"""Checks of a head against its target: errors for wrong sizes, and warnings for differences that lower acceptance."""

from __future__ import annotations

from typing import Any

import pytest

from tests._support.configs import model_config
from trtspec.checkpoints.model_config import RopeScaling
from trtspec.methods.draft_head import check_layer, check_sizes

STRETCHED = RopeScaling("linear", 4.0)


def test_matching_sizes_are_accepted() -> None:
    assert not list(check_sizes("the head is", 12, 50, model_config()))


def test_size_mismatches_are_all_reported_as_errors() -> None:
    found = list(check_sizes("heads are", 16, 40, model_config()))
    assert [(diagnostic.code, diagnostic.message, diagnostic.severity) for diagnostic in found] == [
        ("hidden-size", "heads are for hidden states of 16, the target's have 12", "error"),
        ("vocabulary", "heads are for 40 vocabulary entries, the target has 50", "error"),
    ]


@pytest.mark.parametrize(
    "fields", [{}, {"max_positions": 64}, {"rope_scaling": STRETCHED}], ids=["", "fewer positions", "stretched"]
)
def test_compatible_rope_and_positions_are_accepted(fields: dict[str, Any]) -> None:
    target = model_config(rope_scaling=fields.get("rope_scaling"))
    assert not list(check_layer(model_config(**fields), target))


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"rotary_base": 5e5}, "rope", "the head's rotary embedding has base 500000, the target's base 10000"),
        (
            {"rope_scaling": STRETCHED},
            "rope",
            "the head's rotary embedding has base 10000 and linear scaling by 4, the target's base 10000",
        ),
    ],
)
def test_rope_mismatches_are_notes(fields: dict[str, Any], code: str, message: str) -> None:
    (diagnostic,) = check_layer(model_config(**fields), model_config())
    assert (diagnostic.code, diagnostic.message, diagnostic.severity) == (code, message, "note")
    assert diagnostic.hint
