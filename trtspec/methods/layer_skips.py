# SPDX-License-Identifier: Apache-2.0
"""The set of sublayers that a target skips in self-speculation."""

from __future__ import annotations

from pydantic import Field

from trtspec.recipe.schema import StrictModel

KINDS = ("attention", "mlp")


class Skip(StrictModel):
    """Numbers of the layers, counted from 0, whose attention or MLP is skipped."""

    attention: list[int] = Field(default=[], description="Layers whose attention is skipped while drafting")
    mlp: list[int] = Field(default=[], description="Layers whose MLP is skipped while drafting")

    @property
    def layers(self) -> list[int]:
        """Return the layers whose two sublayers are both skipped."""
        return sorted(set(self.attention) & set(self.mlp))

    @property
    def sublayers(self) -> frozenset[tuple[str, int]]:
        """Return the skipped sublayers as (kind, layer)."""
        return frozenset((kind, layer) for kind in KINDS for layer in self.of(kind))

    def of(self, kind: str) -> list[int]:
        """Return the layers whose sublayer of this kind is skipped."""
        return self.attention if kind == "attention" else self.mlp
