# SPDX-License-Identifier: Apache-2.0
"""What a training came to: the document of `train --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.training.verdict import Verdict, side_of

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Result:
    """The verdict on a trained draft, where it is if it was published, and the record of its training."""

    name: str
    method: str
    out: Path
    verdict: Verdict
    record: Mapping[str, Any]

    @property
    def published(self) -> bool:
        """Return whether the draft is better, and worse at nothing."""
        return not self.verdict.refusals

    def as_dict(self) -> dict[str, Any]:
        """Return the document."""
        whole = self.verdict.whole
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "method": self.method,
            "published": self.published,
            "draft": str(self.out) if self.published else None,
            "refusals": self.verdict.refusals,
            "before": side_of(whole.before),
            "after": side_of(whole.after),
            "change": whole.change.as_list(),
            "kinds": [each.as_dict() for each in self.verdict.kinds],
            "training": dict(self.record),
        }
