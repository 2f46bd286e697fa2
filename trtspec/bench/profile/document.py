# SPDX-License-Identifier: Apache-2.0
"""Document of `profile --json`, and the metadata that it shares with `tune`: target, prompts, time and machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.decision import decide
from trtspec.bench.documents import (
    describe_machine,
    describe_target,
    planned_target_sha256,
    prompts_sha256,
    save_target_document,
)
from trtspec.bench.gates import VerificationCheck
from trtspec.bench.profile.acceptance import AcceptanceStats
from trtspec.bench.profile.candidates import ProfileRequest
from trtspec.bench.profile.recommend import CandidateMeasurements, Case, Recommendation, rate_candidate
from trtspec.core.errors import TrtspecError
from trtspec.core.installation import __version__
from trtspec.planning.pipeline import plan_build
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.artifact import Manifest, load_manifest


def document_metadata(kind: str, asked: ProfileRequest, loaded: LoadedRecipe, root: Path | None) -> dict[str, Any]:
    """Return the metadata of a document; `root` is a measured artifact, or None if only an address is known.

    `prompt_set` describes all prompts from which the measured ones were drawn. `target` is None if it is unknown.
    """
    manifest = load_manifest(root) if root else None
    prompts = artifact_prompts(root, asked.prompts)
    return {
        "kind": kind,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "target": _target(loaded, manifest) if manifest else None,
        "machine": describe_machine(),
        "versions": {**(manifest.tools if manifest else {}), "trtspec": __version__},
        "prompt_set": {"count": len(prompts), "sha256": prompts_sha256(prompt.text for prompt in prompts)},
    }


def save_profile(document: Mapping[str, Any], name: str) -> None:
    """Save the document under the SHA-256 of its target, if known, for artifacts that are built from it later."""
    if target := document["target"]:
        save_target_document(target["sha256"], name, document)


def _target(loaded: LoadedRecipe, measured: Manifest) -> dict[str, str]:
    """Return the target of the artifact that the recipe describes, whose engine can differ from the measuring one."""
    with suppress(TrtspecError):  # the recipe's engine may be unavailable on this machine
        build = plan_build(loaded)
        if build.is_read:
            recipe = build.recipe.without_directories()
            steps = ((step.name, step.key) for step in build.plan.steps)
            return {"model": recipe.target.model, "sha256": planned_target_sha256(recipe, build.target_key, steps)}
    return describe_target(measured)


@dataclass(frozen=True)
class ServerProfile:
    """A profiled server, with output tokens per second by (concurrency, draft length); length 0 is the target alone."""

    url: str
    api: str
    model: str
    draft_len: int
    tokens_per_s: Mapping[Case, float]
    failures: Sequence[str] = ()  # errors of failed requests

    def as_dict(self) -> dict[str, Any]:
        speeds = [
            {"batch": batch, "draft_len": length, "output_tokens_per_s": round(speed, 1)}
            for (batch, length), speed in sorted(self.tokens_per_s.items())
        ]
        return {
            "url": self.url,
            "api": self.api,
            "model": self.model,
            "draft_len": self.draft_len,
            "requests_failed": len(self.failures),
            "speeds": speeds,
        }


@dataclass(frozen=True)
class Profile:
    """Measured candidates, skipped candidates with reasons, and the recommendation."""

    about: Mapping[str, Any]  # metadata of the document
    name: str
    kinds: Sequence[str]  # category of each completed prompt
    tokens: int  # total of all responses
    measured: Sequence[CandidateMeasurements]
    left_out: dict[str, str]
    recommendation: Recommendation
    parity: VerificationCheck | None = None
    too_long: int = 0  # number of prompts that exceed the engine's limits
    server: ServerProfile | None = None  # absent for a profile of the torch engine

    def as_dict(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "format_version": 1,
            **decide(self.recommendation.proposal).as_dict(),
            **self.about,
            "name": self.name,
            "prompts": len(self.kinds),
            "prompts_left_out": self.too_long,
            "kinds": sorted(set(self.kinds)),
            "tokens": self.tokens,
            "server": self.server.as_dict() if self.server else None,
            "quantized_parity": self.parity and {"share": self.parity.value, "detail": self.parity.detail},
            "methods": [_method(each, self.recommendation.batch) for each in self.measured],
            "left_out": [{"method": name, "why": why} for name, why in self.left_out.items()],
            "by_position": [round(rate, 4) for rate in chosen.by_position] if chosen else [],
            "recommendation": self.recommendation.as_dict(),
        }

    @property
    def drafts_with(self) -> str:
        """Return the name of the recipe's own candidate, or "" if it does not speculate or was not measured."""
        return self.recommendation.proposal.own.name if self.recommendation.proposal.own else ""

    @property
    def chosen(self) -> AcceptanceStats | None:
        """Return the acceptance of the recommended candidate, or None if the target alone is recommended."""
        found = next((each for each in self.measured if each.candidate is self.recommendation.candidate), None)
        return found.acceptance[self.recommendation.draft_len] if found else None


def _method(measured: CandidateMeasurements, batch: int) -> dict[str, Any]:
    candidate, best = measured.candidate, measured.best(batch)
    fewest = measured.batches[0]
    acceptance = measured.acceptance[best.draft_len]
    return {
        "method": candidate.method,
        "draft": candidate.draft,
        "options": candidate.options,
        "draft_len": best.draft_len,
        **acceptance.as_dict(),
        "by_kind": [
            {"kind": kind, "prompts": acceptance.kinds.count(kind), **acceptance.for_category(kind).as_dict()}
            for kind in sorted(set(acceptance.kinds))
        ],
        "verdict": rate_candidate(measured, batch),
        "best": [measured.best(each).as_dict() for each in measured.batches],
        "speedups": [each.as_dict() for each in measured.speedups],
        "step_seconds": [
            {"batch": rows, "draft_len": length, "seconds": round(seconds, 6)}
            for (rows, length), seconds in sorted(measured.seconds.items())
        ],
        "prefill_seconds": {
            name: round(seconds / fewest, 6)
            for name, seconds in zip(("alone", "drafting"), measured.prefills[fewest], strict=True)
        },
        "mean_accepted_lens": {
            str(length): round(each.token_weighted.value, 3) for length, each in measured.acceptance.items()
        },
        "by_positions": {
            str(length): [round(rate, 4) for rate in each.by_position] for length, each in measured.acceptance.items()
        },
    }
