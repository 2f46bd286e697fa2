# SPDX-License-Identifier: Apache-2.0
"""Search for layers that a target can skip when it drafts for itself, on text that it generated.

`search` tries sets of sublayers. The score of a set is its matchness: the fraction of positions at which the target
without these sublayers predicts the same token (SWIFT, Xia et al. 2024, arXiv:2410.06916). Sets are ranked by the
expected speed-up at their best draft length, not by matchness alone.

`search_artifact` finds sublayers to skip at run time, which share the target's KV cache. `search_layers` finds the
layers to remove for a pruned draft model with its own KV cache. As long as the greedy chain of a pruned draft matches
the target's text, both have read the same tokens. One pass over a text therefore gives the length of the matching chain
from every position. The search uses half of the texts; the reported results are measured on the other half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from trtspec.bench.artifact import TARGET, artifact_prompts, open_artifact
from trtspec.bench.profile.acceptance import AcceptanceStats, count_steps
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import find_method
from trtspec.methods.layer_pruning import KINDS, Skip
from trtspec.planning.prediction.speedup import expected_speedup
from trtspec.store.artifact import load_manifest

if TYPE_CHECKING:
    from torch import Tensor

    from trtspec.engine.measurement import ReplayedDraft
    from trtspec.engine.model.decoder import Decoder

FORMAT_VERSION = 1
MOST_REPEATS = 500  # number of consecutive known proposals that ends the search
REPORTED = 5
PREFILL_TOKENS = 8192
LENS = range(1, 17)  # draft lengths tried for a pruned draft

OnProgress = Callable[[str, int, int], None]
Unit = tuple[tuple[str, int], ...]  # (kind, layer) of sublayers that are skipped together
Tokens = Sequence[int]
Text = tuple[Tokens, Tokens]  # prompt and response


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a layer search."""

    max_skip: float  # maximum fraction of sublayers to skip
    iterations: int  # maximum number of sets to try
    seconds: float
    whole_layers: bool = False  # skip a layer's attention and MLP together
    layers_left: int = 0  # if set, skip whole layers until this many remain, regardless of `max_skip`


@dataclass(frozen=True)
class SkipCandidate:
    """A set of skipped sublayers with its matchness and expected speed-up."""

    skip: Skip
    matchness: float
    cost: float  # fraction of the weights that a draft step reads
    draft_len: int  # length with the highest expected speed-up
    speedup: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "skip": self.skip.model_dump(),
            "matchness": round(self.matchness, 4),
            "cost": round(self.cost, 4),
            "draft_len": self.draft_len,
            "expected_speedup": round(self.speedup, 3),
        }


def rate(skip: Skip, matchness: float, config: ModelConfig) -> SkipCandidate:
    """Return the candidate for skipped sublayers at its best draft length; `matchness` acts as the acceptance rate."""
    cost = draft_cost(skip, config)
    draft_len = max(find_method("swift").draft_lens, key=lambda length: expected_speedup(matchness, length, cost))
    return SkipCandidate(skip, matchness, cost, draft_len, expected_speedup(matchness, draft_len, cost))


def draft_cost(skip: Skip, config: ModelConfig) -> float:
    """Return the weights that a draft step reads, as a fraction of the weights that a target step reads."""
    hidden, size = config.hidden_size, config.head_size
    attention = 2 * (config.num_heads + config.num_kv_heads) * size * hidden
    mlp = 3 * hidden * config.intermediate_size * max(1, config.experts_per_token)
    whole = config.num_layers * (attention + mlp) + config.vocab_size * hidden
    return 1 - (len(skip.attention) * attention + len(skip.mlp) * mlp) / whole


def ranked(candidates: Sequence[SkipCandidate]) -> list[SkipCandidate]:
    """Return candidates by descending expected speed-up."""
    return sorted(candidates, key=lambda candidate: -candidate.speedup)


def search(
    config: ModelConfig,
    matchness: Callable[[Skip], float],
    limits: SearchBudget,
    chance: Random,
    on_progress: OnProgress = lambda what, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[SkipCandidate]:
    """Return all sets tried until a limit is reached or the neighborhood of the best set is explored.

    The first and the last layer are never skipped, as in SWIFT. Raises TrtspecError if no sublayer may be skipped, or
    if `layers_left` is impossible.
    """
    left = limits.layers_left
    if left and not 2 <= left < config.num_layers:
        message = f"cannot keep {left} of {config.num_layers} layers"
        raise TrtspecError(message, hint="keep at least 2 layers (the first and the last) and skip at least 1")
    units = _units(config.num_layers, limits.whole_layers or bool(left))
    most = config.num_layers - left if left else int(limits.max_skip * len(units))
    if not most:
        what = "layers" if limits.whole_layers else "sublayers"
        between = f"{len(units)} {what} between the target's first and last layer"
        message = f"nothing can be skipped: there are {between}, and --max-skip allows {limits.max_skip:.0%} of them"
        raise TrtspecError(message, hint="raise --max-skip or use another method")
    end, repeats = clock() + limits.seconds, 0
    scored: dict[frozenset[Unit], SkipCandidate] = {}
    for proposal in _proposals(units, most, scored, chance, fills=bool(left)):
        if proposal in scored:
            repeats += 1
        else:
            repeats = 0
            skipped = [sublayer for unit in proposal for sublayer in unit]
            skip = Skip(**{kind: sorted(layer for each, layer in skipped if each == kind) for kind in KINDS})
            scored[proposal] = rate(skip, matchness(skip), config)
            on_progress("search", len(scored), limits.iterations)
        if repeats == MOST_REPEATS or len(scored) == limits.iterations or clock() > end:
            break
    return list(scored.values())


def _units(num_layers: int, whole_layers: bool) -> list[Unit]:
    between = range(1, num_layers - 1)
    if whole_layers:
        return [tuple((kind, layer) for kind in KINDS) for layer in between]
    return [((kind, layer),) for layer in between for kind in KINDS]


def _proposals(
    units: Sequence[Unit], most: int, scored: dict[frozenset[Unit], SkipCandidate], chance: Random, *, fills: bool
) -> Iterator[frozenset[Unit]]:
    """Yield each unit alone, then growing sets by descending matchness, then random variations of the best set.

    The best set has the highest expected speed-up, with `fills` among the sets with the most units. The caller must add
    each set to `scored` before it requests the next one.
    """
    yield from (frozenset({unit}) for unit in units)
    missed_least = sorted(units, key=lambda unit: -scored[frozenset({unit})].matchness)
    yield from (frozenset(missed_least[:count]) for count in range(2, most + 1))
    while True:
        best = max(scored, key=lambda tried: (len(tried) if fills else 0, scored[tried].speedup))
        yield _changed(best, units, most, chance)


def _changed(best: frozenset[Unit], units: Sequence[Unit], most: int, chance: Random) -> frozenset[Unit]:
    """Return the set with one random unit added, removed or replaced; it has 1 to `most` units."""
    dropped = {chance.choice(sorted(best))}
    added = {chance.choice([unit for unit in units if unit not in best] or units)}
    changes = [best | added, best - dropped, (best - dropped) | added]
    return chance.choice([change for change in changes if 0 < len(change) <= most])


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
        """Return the document of `search-skips --json`."""
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
    """Search for sublayers to skip, on the target's responses to `samples` prompts of the artifact drawn with `seed`.

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
    """Return the target's greedy responses to prompts of a file, by default the artifact's prompts.

    Raises TrtspecError for fewer than two non-empty responses.
    """
    prompts = artifact_prompts(root, prompts_file)
    prompts = Random(seed).sample(prompts, min(samples, len(prompts)))
    with open_artifact(root, load_manifest(root)) as artifact:
        texts = artifact.respond([prompt.text for prompt in prompts], max_tokens, partial(on_progress, "generate"))
    found: list[Text] = [(prompt, result.ids) for prompt, result in texts if result.ids]
    if len(found) < 2:
        message = f"the target generated text for {len(found)} prompts; the search needs at least two"
        raise TrtspecError(message, hint="add prompts with --prompts or gates.prompts, or raise --num-prompts")
    return found


def _search(
    root: Path, texts: Sequence[Text], limits: SearchBudget, seed: int, on_progress: OnProgress, *, alone: bool
) -> tuple[list[SkipCandidate], Matcher]:
    """Return the sets tried on the first half of the texts, and the matcher for the second half.

    The engine that generated the texts is closed by now, so the target is loaded again with a cache for them.
    """
    from trtspec.engine.device import choose_device, compute_dtype
    from trtspec.engine.model.decoder import Decoder

    device, checkpoint, half = choose_device("auto"), load_checkpoint(root / TARGET), len(texts) // 2
    longest = max(len(prompt) for prompt, _ in texts) + max(len(said) for _, said in texts)
    model = Decoder(checkpoint, len(texts), longest, device, compute_dtype("auto", device, checkpoint))
    seen, unseen = Matcher(model, texts[:half], 0, alone=alone), Matcher(model, texts[half:], half, alone=alone)
    return search(model.config, seen.matchness, limits, Random(seed), on_progress), unseen


class Matcher:
    """Scorer of skipped sublayers on texts that the full target generated.

    The KV cache has the prompts, computed by the full target, in the rows from `first_row` on. The reduced target then
    reads the responses, as a draft reads its own draft tokens. With `alone`, the reduced target reads the prompts too,
    as a separate draft model does.
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
        """Return the fraction of positions at which the target without `skip` predicts the generated token."""
        return float(self._hits(skip).float().mean())

    def hits(self, skip: Skip) -> list[list[bool]]:
        """Return, for each text and position, True if the target without `skip` predicts the generated token."""
        found = iter(self._hits(skip).tolist())
        return [[next(found) for _ in said] for _, said in self._texts]

    def _hits(self, skip: Skip) -> Tensor:
        from trtspec.engine.model.decoder import Sublayers

        skipped = Sublayers(frozenset(skip.attention), frozenset(skip.mlp))
        logits, _ = self.model.forward_with_features(self._inputs, self._window, (), self._at, skipped)
        return logits.argmax(-1) == self._said


@dataclass(frozen=True)
class PrunedDraft:
    """A pruned draft, measured on texts that the search did not use; `cost` is defined in SkipCandidate."""

    skip: Skip
    num_layers: int
    cost: float
    draft_len: int
    acceptance: AcceptanceStats
    tried: int
    seconds: float

    @property
    def layers(self) -> list[int]:
        """Return the numbers of the target layers that the draft keeps."""
        return [layer for layer in range(self.num_layers) if layer not in self.skip.layers]

    @property
    def speedup(self) -> float:
        """Return the expected speed-up if the time of a step is proportional to the weights that it reads."""
        return self.acceptance.token_weighted.value / (1 + self.draft_len * self.cost)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `prune-layers --json` without the output directory."""
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
    """Search for the layers of a pruned draft, on the target's responses to `samples` prompts drawn with `seed`.

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
    config, seconds, drafts = unseen.model.config, time.monotonic() - started, []
    cost = draft_cost(skip, config)
    for length in LENS:
        acceptance = AcceptanceStats(tuple(count_steps(places, length) for places in chains), ("",) * len(chains))
        drafts.append(PrunedDraft(skip, config.num_layers, cost, length, acceptance, len(tried), seconds))
    return max(drafts, key=lambda draft: draft.speedup)


def _chains(hits: list[bool]) -> list[ReplayedDraft]:
    """Return the draft chain after each generated token except the last; a chain is correct until its first miss."""
    from trtspec.engine.measurement import ReplayedDraft

    longest = max(LENS)
    return [
        ReplayedDraft(longest, longest, sum(takewhile(bool, hits[place : place + longest])))
        for place in range(1, len(hits))
    ]
