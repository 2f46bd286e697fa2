# SPDX-License-Identifier: Apache-2.0
"""Find recipe keys that are less strict than their safe defaults. Independent of methods and engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.recipe.schema import Gates, ModelSource, Recipe, Rollout, Serving

Keys = dict[str, tuple[type[BaseModel], tuple[str, ...]]]
# Keys with a safe default, by whether lower or higher values are less strict.
LOOSER_BELOW: Keys = {
    "gates": (Gates, ("lossless", "quantized_parity")),
    "serving.rollout": (Rollout, ("hold_s", "min_requests")),
}
LOOSER_ABOVE: Keys = {
    "serving.rollout": (Rollout, ("max_failed", "max_latency_ratio")),
    "serving": (Serving, ("kv_cache_fraction", "max_queue_size")),
    "target": (ModelSource, ("allow_pickle", "allow_nonfinite")),
}


@dataclass(frozen=True)
class UnsafeOverride:
    """A recipe key that is less strict than its default."""

    path: str
    value: Any
    default: Any

    def __str__(self) -> str:
        return f"{self.path} is {json.dumps(self.value)}, by default {json.dumps(self.default)}"


def find_unsafe_overrides(recipe: Recipe | ResolvedRecipe) -> Iterator[UnsafeOverride]:
    """Yield the keys that are less strict than their default."""
    for table, sign in ((LOOSER_BELOW, -1), (LOOSER_ABOVE, 1)):
        for path, (model, keys) in table.items():
            for key in keys:
                value, default = getattr(_at(recipe, path), key), model.model_fields[key].default
                if sign * (value - default) > 0:
                    yield UnsafeOverride(f"{path}.{key}", value, default)


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = getattr(value, key)
    return value
