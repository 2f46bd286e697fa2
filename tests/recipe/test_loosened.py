# SPDX-License-Identifier: Apache-2.0
"""Keys that are less strict than their default, in recipes and in manifests."""

from __future__ import annotations

from typing import Any

import pytest

from tests._support.manifests import resolved
from trtspec.recipe.resolve import find_unsafe_overrides
from trtspec.recipe.schema import Recipe

LOOSER: list[tuple[dict[str, Any], str]] = [
    ({"gates": {"lossless": False}}, "gates.lossless is false, by default true"),
    ({"gates": {"quantized_parity": 0.5}}, "gates.quantized_parity is 0.5, by default 0.9"),
    ({"serving": {"rollout": {"hold_s": 0.5}}}, "serving.rollout.hold_s is 0.5, by default 10.0"),
    ({"serving": {"rollout": {"max_failed": 100}}}, "serving.rollout.max_failed is 100, by default 0"),
    ({"serving": {"max_queue_size": 129}}, "serving.max_queue_size is 129, by default 128"),
    ({"target": {"model": "./t", "allow_pickle": True}}, "target.allow_pickle is true, by default false"),
]
STRICTER: dict[str, Any] = {
    "gates": {"quantized_parity": 0.99},
    "serving": {"max_queue_size": 1, "kv_cache_fraction": 0.5, "rollout": {"min_requests": 100, "hold_s": 60.0}},
}


@pytest.mark.parametrize(("sections", "said"), LOOSER)
def test_less_strict_key_is_reported_with_its_default(sections: dict[str, Any], said: str) -> None:
    written = {"schema": "trtspec.recipe/1", "name": "tiny", "target": {"model": "./t"}, **sections}
    assert [str(each) for each in find_unsafe_overrides(Recipe.model_validate(written))] == [said]
    assert [str(each) for each in find_unsafe_overrides(resolved(**sections))] == [said]


def test_default_and_stricter_keys_are_not_reported() -> None:
    assert [*find_unsafe_overrides(resolved()), *find_unsafe_overrides(resolved(**STRICTER))] == []
