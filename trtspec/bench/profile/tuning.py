# SPDX-License-Identifier: Apache-2.0
"""The result of successive halving, and the document of `tune --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.bench.profile.candidate import ProfileCandidate, SampleTexts
from trtspec.bench.profile.measured import CandidateMeasurements, ExpectedSpeedup
from trtspec.bench.profile.recommend import Recommendation
from trtspec.bench.profile.successive_halving import Rung
from trtspec.bench.verdict import derive_verdict

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Tuning:
    """The rounds, measurements by (settings, texts), skipped arms with reasons, and the recommendation.

    `about` is the document's metadata.
    """

    about: Mapping[str, Any]
    name: str
    method: str
    texts: SampleTexts
    rungs: Sequence[Rung[ProfileCandidate]]
    measured: Mapping[tuple[str, int], CandidateMeasurements]
    left_out: dict[str, str]
    recommendation: Recommendation

    @property
    def drafts_with(self) -> str:
        """Return the name of the recipe's own candidate."""
        return self.rungs[0].scores[0][0].name if self.rungs and self.rungs[0].scores else self.method

    def best_in_round(self, arm: ProfileCandidate, rung: Rung[ProfileCandidate]) -> ExpectedSpeedup | None:
        """Return an arm's expected speed-up in a round, or None if it could not be measured."""
        found = self.measured.get((arm.settings, rung.texts))
        return found.best(self.recommendation.batch) if found else None

    def as_dict(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "format_version": FORMAT_VERSION,
            **derive_verdict(self.recommendation.proposal).as_dict(),
            **self.about,
            "name": self.name,
            "method": self.method,
            "prompts": len(self.texts.prompts),
            "tokens": self.texts.tokens,
            "rounds": [self._rung(rung) for rung in self.rungs],
            "left_out": [{"settings": name, "why": why} for name, why in self.left_out.items()],
            "recommendation": self.recommendation.as_dict(),
        }

    def _rung(self, rung: Rung[ProfileCandidate]) -> dict[str, Any]:
        arms = [self._arm(arm, rung) | {"kept": place < rung.kept} for place, (arm, _) in enumerate(rung.scores)]
        return {"prompts": rung.texts, "tried": arms}

    def _arm(self, arm: ProfileCandidate, rung: Rung[ProfileCandidate]) -> dict[str, Any]:
        best = self.best_in_round(arm, rung)
        told = best.as_dict() if best else {"batch": self.recommendation.batch, "draft_len": arm.draft_len}
        return {"options": arm.options, **told}
