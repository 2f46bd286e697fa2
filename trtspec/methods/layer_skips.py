# SPDX-License-Identifier: Apache-2.0
"""The set of sublayers that a target skips while it drafts for itself."""

from __future__ import annotations

from pydantic import Field

from trtspec.recipe.schema import StrictModel

KINDS = ("attention", "mlp")


class Skip(StrictModel):
    """Numbers of the layers, counted from 0, whose attention or MLP is left out."""

    attention: list[int] = Field(default=[], description="Layers whose attention is left out while drafting")
    mlp: list[int] = Field(default=[], description="Layers whose MLP is left out while drafting")

    @property
    def layers(self) -> list[int]:
        """Return the layers of which both sublayers are left out."""
        return sorted(set(self.attention) & set(self.mlp))

    @property
    def sublayers(self) -> frozenset[tuple[str, int]]:
        """Return what is left out, as (kind, layer)."""
        return frozenset((kind, layer) for kind in KINDS for layer in self.of(kind))

    def of(self, kind: str) -> list[int]:
        """Return the layers of one kind."""
        return self.attention if kind == "attention" else self.mlp
