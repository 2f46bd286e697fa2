# SPDX-License-Identifier: Apache-2.0
"""Holds an artifact's text against the source model, run by transformers.

One pass over prompt and answer tells, for each token, whether it is the model's own greedy choice after all that
stands before it. Knows nothing of gates, and nothing of how the text was made.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.checkpoint.trtllm import load_checkpoint
from trtspec.generation.request import Result
from trtspec.measure.artifact import TARGET, OpenArtifact
from trtspec.measure.report import Check
from trtspec.prompts.prompt import Prompt

if TYPE_CHECKING:
    import torch

# Two float32 implementations differ by about 1e-5 of a logit; a lead smaller than this decides nothing.
TIE = 1e-3
SHOWN = 5  # differences and ties that a report spells out

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Disagreement:
    """A place of an answer where the source model prefers another token, with both tokens' logits in it."""

    place: int
    theirs: int
    ours: int
    their_logit: float
    our_logit: float

    @property
    def lead(self) -> float:
        return self.their_logit - self.our_logit

    @property
    def is_tie(self) -> bool:
        return self.lead <= TIE  # of logits that are not numbers nothing is

    def __str__(self) -> str:
        return (
            f"token {self.place}: the source prefers {self.theirs} (logit {self.their_logit:.6f})"
            f" to our {self.ours} ({self.our_logit:.6f})"
        )


@dataclass(frozen=True)
class _Compared:
    """One answer: how many places of it were compared, and those where the source model prefers another token."""

    prompt: str
    places: int
    disagreements: list[_Disagreement]


def check_parity(
    artifact: OpenArtifact, source: Path, prompts: Sequence[Prompt], results: Sequence[Result], on_progress: OnProgress
) -> Check:
    """Hold every token against the source model's own choice at its place; where there is none, nothing holds."""
    import torch
    import transformers

    untyped: Any = transformers
    untyped.utils.logging.disable_progress_bar()
    model = untyped.AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
    compared = []
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True), 1):
        disagreements = _disagreements(artifact, model, prompt.text, result)
        compared.append(_Compared(prompt.name, _places(result), disagreements))
        on_progress("parity", number, len(prompts))
    algorithm = load_checkpoint(artifact.root / TARGET).quantization.algo
    limit = artifact.recipe.gates.quantized_parity
    return _quantized_parity(algorithm, compared, limit) if algorithm else _exact_parity(compared)


def _places(result: Result) -> int:
    """Return how many choices an answer is of: its tokens, and the end where the model chose one."""
    return len(result.ids) + (result.finish_reason == "end_id")


def _exact_parity(compared: Sequence[_Compared]) -> Check:
    """Every text has to be the source model's, but for numerical ties."""
    found = [(answer.prompt, each) for answer in compared for each in answer.disagreements]
    same = sum(answer.places > 0 and all(each.is_tie for each in answer.disagreements) for answer in compared)
    detail = f"{same} of {len(compared)} texts are what transformers says greedily with the source model"
    differences = [f"prompt {name} {each}" for name, each in found if not each.is_tie]
    ties = [f"prompt {name} {each}" for name, each in found if each.is_tie]
    for what, texts in (("differences", differences), ("numerical ties", ties)):
        detail += f"; {len(texts)} {what}: " + ", ".join(texts[:SHOWN]) if texts else ""
    if empty := [answer.prompt for answer in compared if not answer.places]:
        detail += f"; no token to compare of {len(empty)}: prompt " + ", ".join(empty[:SHOWN])
    return Check("parity", same == len(compared), same, len(compared), detail)


def _quantized_parity(algorithm: str, compared: Sequence[_Compared], limit: float) -> Check:
    """A quantized target is a model of its own; its tokens, each after its own text, are mostly the source's."""
    places = sum(answer.places for answer in compared)
    if not places:
        detail = f"nothing was compared: the {algorithm} target answered none of {len(compared)} prompts with a token"
        return Check("parity", False, 0.0, limit, detail, gate="quantized_parity")
    leads = [each.lead for answer in compared for each in answer.disagreements]
    share = 1 - len(leads) / places
    detail = f"{share:.1%} of {places} tokens of the {algorithm} target are the unquantized source's own choice"
    if leads:
        detail += f"; where not, the source prefers its own by {statistics.median(leads):.3f} of a logit (median)"
    detail += f"; at least {limit:.1%} is wanted"
    return Check("parity", share >= limit, round(share, 4), limit, detail, gate="quantized_parity")


def _disagreements(artifact: OpenArtifact, model: Any, prompt: str, result: Result) -> list[_Disagreement]:
    """Return every place where the source model prefers another token; an end that was chosen is a token too."""
    import torch

    before = artifact.tokenizer.encode(prompt)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([[*before, *result.ids]])).logits[0, len(before) - 1 :]
    ids = list(result.ids)
    if result.finish_reason == "end_id":
        ids.append(max(artifact.tokenizer.end_ids, key=lambda token: float(logits[-1, token])))
    return [
        _Disagreement(place, theirs, ours, float(logits[place, theirs]), float(logits[place, ours]))
        for place, (theirs, ours) in enumerate(zip(logits.argmax(-1).tolist(), ids, strict=False))
        if theirs != ours
    ]
