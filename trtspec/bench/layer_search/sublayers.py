# SPDX-License-Identifier: Apache-2.0
"""Finds what an artifact's target can leave out while it drafts for itself, on text that it generated.

One pass of what is left of the target over such a text tells at how many places it says the same. Sets are searched on
half of the texts; what is reported of them was measured on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from trtspec.bench.artifact import TARGET, artifact_prompts, open_artifact
from trtspec.bench.layer_search.search import Candidate, OnProgress, SkipLimits, ranked, rate, search
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.methods.layer_skips import Skip
from trtspec.store.manifest import load_manifest

if TYPE_CHECKING:
    from torch import Tensor

    from trtspec.engine.model.decoder import Decoder

FORMAT_VERSION = 1
REPORTED = 5
PREFILL_TOKENS = 8192

Tokens = Sequence[int]
Text = tuple[Tokens, Tokens]  # a prompt, and what the target says to it


@dataclass(frozen=True)
class Found:
    """The best sets, the best first, as measured at `places` of text that the search had not seen."""

    candidates: tuple[Candidate, ...]
    places: int
    tried: int
    seconds: float

    @property
    def best(self) -> Candidate:
        """Return the set to use."""
        return self.candidates[0]

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the recipe's section that uses the best set."""
        options = {"skip": self.best.skip.model_dump()}
        return {"method": "swift", "draft_len": self.best.draft_len, "options": options}

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `swift --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "places": self.places,
            "tried": self.tried,
            "seconds": round(self.seconds, 2),
            "speculation": self.speculation,
        }


def search_artifact(
    root: Path,
    *,
    samples: int,
    max_tokens: int,
    limits: SkipLimits,
    seed: int,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Search on what the target of an artifact just built says to `samples` of its prompts, drawn by `seed`.

    Raises TrtspecError where there is nothing to leave out, or too little text to search on.
    """
    import torch

    started = clock()
    texts = answered(root, None, samples, max_tokens, seed, on_progress)
    with torch.inference_mode():
        model, half = load_for(root, texts), len(texts) // 2
        seen, unseen = Matcher(model, texts[:half], 0), Matcher(model, texts[half:], half)
        tried = search(model.config, seen.matchness, limits, Random(seed), on_progress, clock)
        best = [candidate.skip for candidate in ranked(tried)[:REPORTED]]
        measured = ranked([rate(skip, unseen.matchness(skip), model.config) for skip in best])
    return Found(tuple(measured), unseen.places, len(tried), clock() - started)


def answered(
    root: Path, prompts_file: Path | None, samples: int, max_tokens: int, seed: int, on_progress: OnProgress
) -> list[Text]:
    """Return what an artifact's target says greedily to some prompts of a file, None for the artifact's own.

    Raises TrtspecError where it has nothing to say to two of them.
    """
    prompts = artifact_prompts(root, prompts_file)
    prompts = Random(seed).sample(prompts, min(samples, len(prompts)))
    texts: list[Text] = []
    with open_artifact(root, load_manifest(root)) as artifact:
        rows = artifact.engine.settings.max_batch_size
        for start in range(0, len(prompts), rows):
            requests = [artifact.request(prompt.text, max_tokens) for prompt in prompts[start : start + rows]]
            results = artifact.engine.generate(requests)
            texts += [(request.prompt_ids, result.ids) for request, result in zip(requests, results, strict=True)]
            on_progress("generate", min(start + rows, len(prompts)), len(prompts))
    found = [(prompt, said) for prompt, said in texts if said]
    if len(found) < 2:
        message = f"the target has something to say to {len(found)} prompts; the search needs two or more"
        raise TrtspecError(message, hint="name more prompts, in --prompts or under gates.prompts, or raise --samples")
    return found


def load_for(root: Path, texts: Sequence[Text]) -> Decoder:
    """Load the target with room for the texts; the engine that generated them is gone, its memory with it."""
    from trtspec.engine.device import choose_device, compute_dtype
    from trtspec.engine.model.decoder import Decoder

    device, target = choose_device("auto"), root / TARGET
    longest = max(len(prompt) for prompt, _ in texts) + max(len(said) for _, said in texts)
    checkpoint = load_checkpoint(target)
    return Decoder(checkpoint, len(texts), longest, device, compute_dtype("auto", device, checkpoint))


class Matcher:
    """Texts of a target; tells at which share of their places a part of the target says the same.

    The prompts stand in the target's cache, from `first_row` on, as the whole target sees them. What was said is taken
    in by the part, as a draft takes in what it drafted itself. `alone`, the part takes in the prompts as well, as a
    model of its own does.
    """

    def __init__(self, model: Decoder, texts: Sequence[Text], first_row: int, *, alone: bool = False) -> None:
        import torch

        from trtspec.engine.prefill import prefill

        self._model, self._texts = model, texts
        if not alone:
            prefill(model, [prompt for prompt, _ in texts], first_row, PREFILL_TOKENS)
        starts = [0 if alone else len(prompt) - 1 for prompt, _ in texts]
        read = [[*prompt, *said[:-1]][start:] for start, (prompt, said) in zip(starts, texts, strict=True)]
        width = max(map(len, read))
        self._window = model.windows.chain(starts, width, first_row)
        self._inputs = torch.tensor([[*row, *[0] * (width - len(row))] for row in read], device=model.device)
        at = [
            row * width + len(tokens) - len(said) + place
            for row, (tokens, (_, said)) in enumerate(zip(read, texts, strict=True))
            for place in range(len(said))
        ]
        self._at = torch.tensor(at, device=model.device)
        self._said = torch.tensor([token for _, said in texts for token in said], device=model.device)
        self.places = len(at)

    def matchness(self, skip: Skip) -> float:
        """Return the share of places where the target without these sublayers says what the whole one said."""
        return float(self._hits(skip).float().mean())

    def hits(self, skip: Skip) -> list[list[bool]]:
        """Return for each text at which places it says the same."""
        found = iter(self._hits(skip).tolist())
        return [[next(found) for _ in said] for _, said in self._texts]

    def _hits(self, skip: Skip) -> Tensor:
        from trtspec.engine.model.decoder import Sublayers

        skipped = Sublayers(frozenset(skip.attention), frozenset(skip.mlp))
        logits, _ = self._model.forward_with_features(self._inputs, self._window, (), self._at, skipped)
        return logits.argmax(-1) == self._said
