# SPDX-License-Identifier: Apache-2.0
"""Find layers that a target can do without when it drafts for itself, on text that it generated.

`search_artifact` finds sublayers to skip at run time, which share the target's KV cache. `search_layers` finds the
layers of a pruned draft model with its own KV cache; while its greedy chain matches the target's text it has read the
same tokens, so one pass over a text gives the length of the matching chain from every position. The search uses half of
the texts; the reported results are measured on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from trtspec.bench.artifact import TARGET, artifact_prompts, open_artifact
from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.bench.skip_search import OnProgress, SearchBudget, SkipCandidate, draft_cost, ranked, rate, search
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.methods.layer_pruning import Skip
from trtspec.store.artifact import load_manifest

if TYPE_CHECKING:
    from torch import Tensor

    from trtspec.engine.measurement import ReplayedDraft
    from trtspec.engine.model.decoder import Decoder


FORMAT_VERSION = 1
REPORTED = 5
PREFILL_TOKENS = 8192
LENS = range(1, 17)  # draft lengths of a pruned draft

Tokens = Sequence[int]
Text = tuple[Tokens, Tokens]  # prompt and response


@dataclass(frozen=True)
class SkipSearchResult:
    """The best sets in descending order, measured at `places` positions of texts that the search did not use."""

    candidates: tuple[SkipCandidate, ...]
    places: int
    tried: int
    seconds: float

    @property
    def best(self) -> SkipCandidate:
        return self.candidates[0]

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the recipe's `speculation` section for the best set."""
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
    limits: SearchBudget,
    seed: int,
    on_progress: OnProgress = lambda what, done, total: None,
) -> SkipSearchResult:
    """Search on the target's responses to `samples` of the artifact's prompts, drawn with `seed`.

    Raises TrtspecError if no sublayer can be skipped or there are too few responses.
    """
    import torch

    started = time.monotonic()
    texts = generate_texts(root, None, samples, max_tokens, seed, on_progress)
    with torch.inference_mode():
        tried, unseen = _search(root, texts, limits, seed, on_progress, alone=False)
        best = [candidate.skip for candidate in ranked(tried)[:REPORTED]]
        measured = ranked([rate(skip, unseen.matchness(skip), unseen.model.config) for skip in best])
    return SkipSearchResult(tuple(measured), unseen.places, len(tried), time.monotonic() - started)


def generate_texts(
    root: Path, prompts_file: Path | None, samples: int, max_tokens: int, seed: int, on_progress: OnProgress
) -> list[Text]:
    """Return the target's greedy responses to prompts of a file, by default the artifact's.

    Raises TrtspecError for fewer than two non-empty responses.
    """
    prompts = artifact_prompts(root, prompts_file)
    prompts = Random(seed).sample(prompts, min(samples, len(prompts)))
    with open_artifact(root, load_manifest(root)) as artifact:
        texts = artifact.respond([prompt.text for prompt in prompts], max_tokens, partial(on_progress, "generate"))
    found = [(prompt, result.ids) for prompt, result in texts if result.ids]
    if len(found) < 2:
        message = f"the target generated text for {len(found)} prompts; the search needs at least two"
        raise TrtspecError(message, hint="add prompts with --prompts or gates.prompts, or raise --num-prompts")
    return found


def load_target_for(root: Path, texts: Sequence[Text]) -> Decoder:
    """Load the target with a cache for the texts, after the engine that generated them has been closed."""
    from trtspec.engine.device import choose_device, compute_dtype
    from trtspec.engine.model.decoder import Decoder

    device, target = choose_device("auto"), root / TARGET
    longest = max(len(prompt) for prompt, _ in texts) + max(len(said) for _, said in texts)
    checkpoint = load_checkpoint(target)
    return Decoder(checkpoint, len(texts), longest, device, compute_dtype("auto", device, checkpoint))


def _search(
    root: Path, texts: Sequence[Text], limits: SearchBudget, seed: int, on_progress: OnProgress, *, alone: bool
) -> tuple[list[SkipCandidate], Matcher]:
    """Return the sets tried on half of the texts, and the matcher of the other half."""
    model, half = load_target_for(root, texts), len(texts) // 2
    seen, unseen = Matcher(model, texts[:half], 0, alone=alone), Matcher(model, texts[half:], half, alone=alone)
    return search(model.config, seen.matchness, limits, Random(seed), on_progress), unseen


class Matcher:
    """Score subsets of a target's sublayers on its texts.

    The prompts are in the KV cache from row `first_row`, computed by the full target. The reduced target reads the
    responses, as a draft reads its own draft tokens. With `alone`, it reads the prompts too, as a separate draft model
    does.
    """

    def __init__(self, model: Decoder, texts: Sequence[Text], first_row: int, *, alone: bool = False) -> None:
        import torch

        from trtspec.engine.prefill import prefill

        self.model, self._texts = model, texts
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
        """Return the share of positions where the target without these sublayers predicts the generated token."""
        return float(self._hits(skip).float().mean())

    def hits(self, skip: Skip) -> list[list[bool]]:
        """Return for each text whether each position matches."""
        found = iter(self._hits(skip).tolist())
        return [[next(found) for _ in said] for _, said in self._texts]

    def _hits(self, skip: Skip) -> Tensor:
        from trtspec.engine.model.decoder import Sublayers

        skipped = Sublayers(frozenset(skip.attention), frozenset(skip.mlp))
        logits, _ = self.model.forward_with_features(self._inputs, self._window, (), self._at, skipped)
        return logits.argmax(-1) == self._said


@dataclass(frozen=True)
class PrunedDraft:
    """A pruned draft, measured on texts that the search did not use; `cost` is that of `SkipCandidate`.

    `by_len` is its acceptance at each draft length.
    """

    skip: Skip
    num_layers: int
    cost: float
    by_len: dict[int, AcceptanceStats]
    tried: int
    seconds: float

    @cached_property
    def draft_len(self) -> int:
        """Return the draft length with the highest expected speed-up."""
        return max(self.by_len, key=self._speedup)

    @property
    def layers(self) -> list[int]:
        """Return the target layers that the draft keeps."""
        return [layer for layer in range(self.num_layers) if layer not in self.skip.layers]

    @property
    def acceptance(self) -> AcceptanceStats:
        """Return the acceptance at `draft_len`."""
        return self.by_len[self.draft_len]

    @property
    def speedup(self) -> float:
        """Return the expected speed-up at `draft_len` if the time of a step is proportional to the weights read."""
        return self._speedup(self.draft_len)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `prune --json` without the directory."""
        value, low, high = self.acceptance.token_weighted.as_list()
        return {
            "format_version": FORMAT_VERSION,
            "layers": self.layers,
            "left_out": self.skip.layers,
            "cost": round(self.cost, 4),
            "draft_len": self.draft_len,
            "mean_accepted_len": value,
            "interval": [low, high],
            "acceptance_rate": round(self.acceptance.rate, 4),
            "expected_speedup": round(self.speedup, 3),
            "texts": len(self.acceptance.texts),
            "tried": self.tried,
            "seconds": round(self.seconds, 2),
        }

    def _speedup(self, draft_len: int) -> float:
        return self.by_len[draft_len].token_weighted.value / (1 + draft_len * self.cost)


def search_layers(
    root: Path,
    prompts: Path | None,
    *,
    samples: int,
    max_tokens: int,
    limits: SearchBudget,
    seed: int,
    on_progress: OnProgress = lambda what, done, total: None,
) -> PrunedDraft:
    """Search on the target's responses to `samples` prompts of a file, drawn with `seed`.

    Candidates are scored on half of the texts; the best one is measured on the other half. Raises TrtspecError if no
    layer can be skipped or there are too few responses.
    """
    import torch

    started = time.monotonic()
    texts = generate_texts(root, prompts, samples, max_tokens, seed, on_progress)
    with torch.inference_mode():
        tried, unseen = _search(root, texts, limits, seed, on_progress, alone=True)
        most = max(len(candidate.skip.layers) for candidate in tried)
        fitting = [each for each in tried if not limits.layers_left or len(each.skip.layers) == most]
        skip = ranked(fitting)[0].skip
        chains = [_chains(hits) for hits in unseen.hits(skip)]
    found = {
        length: AcceptanceStats(tuple(count_steps(places, length) for places in chains), ("",) * len(chains))
        for length in LENS
    }
    config = unseen.model.config
    seconds = time.monotonic() - started
    return PrunedDraft(skip, config.num_layers, draft_cost(skip, config), found, len(tried), seconds)


def _chains(hits: list[bool]) -> list[ReplayedDraft]:
    """Return the draft chain after each generated token except the last; it is correct until the first miss."""
    from trtspec.engine.measurement import ReplayedDraft

    longest = max(LENS)
    return [
        ReplayedDraft(longest, longest, sum(takewhile(bool, hits[place : place + longest])))
        for place in range(1, len(hits))
    ]
