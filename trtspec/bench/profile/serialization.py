# SPDX-License-Identifier: Apache-2.0
"""Convert measurements to JSON and back, to resume interrupted work."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts
from trtspec.bench.profile.candidate import ProfileCandidate, SampleTexts
from trtspec.bench.profile.measured import CandidateMeasurements


def dump_texts(texts: SampleTexts) -> dict[str, Any]:
    """Return texts as JSON values."""
    return {"prompts": texts.prompts, "said": texts.said, "kinds": texts.kinds}


def read_texts(saved: dict[str, Any]) -> SampleTexts:
    """Return texts from JSON values."""
    prompts, said = (tuple(map(tuple, saved[key])) for key in ("prompts", "said"))
    return SampleTexts(prompts, said, tuple(saved["kinds"]))


def dump_measured(measured: CandidateMeasurements) -> dict[str, Any]:
    """Return measurements without the candidate as JSON values."""
    acceptance = {
        str(length): {"texts": [astuple(text) for text in each.texts], "kinds": each.kinds}
        for length, each in measured.acceptance.items()
    }
    return {
        "acceptance": acceptance,
        "seconds": [[*case, each] for case, each in measured.seconds.items()],
        "prefills": [[batch, *pair] for batch, pair in measured.prefills.items()],
        "answer_len": measured.answer_len,
    }


def read_measured(candidate: ProfileCandidate, saved: dict[str, Any]) -> CandidateMeasurements:
    """Return a candidate's measurements from JSON values."""
    acceptance = {
        int(length): AcceptanceStats(tuple(_counts(*text) for text in each["texts"]), tuple(each["kinds"]))
        for length, each in saved["acceptance"].items()
    }
    seconds = {(batch, length): each for batch, length, each in saved["seconds"]}
    prefills = {batch: (alone, drafting) for batch, alone, drafting in saved["prefills"]}
    return CandidateMeasurements(candidate, acceptance, seconds, prefills, saved["answer_len"])


def _counts(steps: int, drafted: int, accepted: int, reached: list[int], drafted_at: list[int]) -> StepCounts:
    return StepCounts(steps, drafted, accepted, tuple(reached), tuple(drafted_at))
