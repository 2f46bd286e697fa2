# SPDX-License-Identifier: Apache-2.0
"""The exact distribution of an implementation's results: every draft and every 32-bit uniform, by enumeration.

For one draft the cube of uniforms consists of cells with a constant result. Their edges are found to the last bit by
bisection, for all drafts and cells in parallel, so that an implementation is called with large batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tests.kernels import reference
from tests.kernels.batches import LAST, ChainRule, TreeRule
from tests.kernels.distribution import (
    Box,
    Case,
    Options,
    Table,
    deterministic,
    drafts,
    prefix_of,
    sampled,
    target_distribution,
    text_distribution,
)
from trtspec.kernels.bit_exact import ChainBatch, DraftKind, Mode, TreeBatch
from trtspec.kernels.chain import VerifyResult

Ask = Callable[[list["Cell"]], list[VerifyResult]]

DISTRIBUTION_TOLERANCE = 1e-6
SEEDS = 2


@dataclass(frozen=True)
class LogitCase(Case):
    """A draft with the inputs of an implementation: logits, and the rows of the draft."""

    logits: np.ndarray
    draft_rows: np.ndarray | None


@dataclass(frozen=True)
class Cell:
    """Uniforms from `lows` up to, but not including, `highs` [columns]."""

    case: LogitCase
    lows: tuple[int, ...]
    highs: tuple[int, ...]

    def at(self, column: int, uniform: int) -> Cell:
        """Return the part of the cell from a uniform on."""
        return replace(self, lows=_with(self.lows, column, uniform))

    def until(self, column: int, uniform: int) -> Cell:
        """Return the part of the cell before a uniform."""
        return replace(self, highs=_with(self.highs, column, uniform))


def _with(values: tuple[int, ...], column: int, value: int) -> tuple[int, ...]:
    return (*values[:column], value, *values[column + 1 :])


@dataclass(frozen=True)
class Setting:
    """Drafts with the shape `parents` and tokens from `options`, and the sampling parameters of the request.

    `draft_kind` is the kind of draft passed to the implementation, or None; deterministic tokens have rows of zeros.
    `mode` None is a chain, which is accepted as a whole with `as_block`.
    """

    parents: tuple[int, ...]
    options: Options
    draft_kind: DraftKind | None = None
    mode: Mode | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    vocab: int = 4
    as_block: bool = False

    def distribution_of(self, logits: np.ndarray) -> np.ndarray:
        """Return the distribution that the request samples from, by the reference."""
        return reference.sampling_probs(logits.astype(np.float64), self.temperature, self.top_k, self.top_p)

    def logits(self, seed: int) -> Table:
        """Return random logits for every prefix, some of them masked."""
        rng = np.random.default_rng(seed)
        table = {}
        for prefix in target_prefixes(self.vocab):
            table[prefix] = rng.normal(size=self.vocab).astype(np.float32) * 1.5
            if rng.random() < 0.3:
                table[prefix][rng.integers(self.vocab)] = -np.inf
        return table

    def cases(self, target: Table, draft: Table) -> list[LogitCase]:
        """Return every possible draft, given logits for every prefix."""
        distribution = {prefix: self.distribution_of(row) for prefix, row in draft.items()}
        rows_by_prefix = distribution if self.draft_kind == DraftKind.PROBABILITIES else draft
        if self.options is deterministic:
            rows_by_prefix = {prefix: np.zeros(self.vocab) for prefix in draft}
        found = []
        for tokens, weight in drafts(self.parents, distribution, self.options):
            prefixes = [prefix_of(node, tokens, self.parents) for node in range(len(tokens))]
            logits = np.array([target[prefix] for prefix in prefixes])
            rows = (
                None
                if self.draft_kind is None
                else np.array([rows_by_prefix[prefix] for prefix in prefixes], dtype=np.float32)
            )
            shape = (np.array(self.parents), np.array(tokens), logits, None, weight, len(tokens))
            found.append(LogitCase(*shape, logits, rows))
        return found

    @property
    def columns(self) -> tuple[int, ...]:
        """The uniforms in the order in which the rule reads them."""
        nodes = tuple(range(len(self.parents)))
        if self.as_block:  # the last token's uniform decides first
            return (*nodes[-2::-1], nodes[-1])
        return (*nodes[1:], 0) if self.mode == Mode.SAMPLED else nodes


def target_prefixes(vocab: int) -> list[tuple[int, ...]]:
    """Return the texts of up to two tokens."""
    singles = [(token,) for token in range(vocab)]
    return [(), *singles, *[(*first, token) for first in singles for token in range(vocab)]]


CHAIN, SIBLINGS, THREE_SIBLINGS = (-1, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, 0)
PROBABILITIES, LOGITS = DraftKind.PROBABILITIES, DraftKind.LOGITS
CHAIN_SETTINGS = {
    "sampled, with probabilities": Setting(CHAIN, sampled, PROBABILITIES),
    "sampled, with logits": Setting(CHAIN, sampled, LOGITS, temperature=0.7),
    "sampled, truncated": Setting(CHAIN, sampled, LOGITS, temperature=1.3, top_k=3, top_p=0.8),
    "deterministic": Setting(CHAIN, deterministic, temperature=0.7),
    "deterministic, truncated": Setting(CHAIN, deterministic, top_k=3, top_p=0.7),
}
BLOCK_SETTINGS = {name: replace(setting, as_block=True) for name, setting in CHAIN_SETTINGS.items()}
TREE_SETTINGS = {
    "deterministic": Setting(SIBLINGS, deterministic, mode=Mode.DETERMINISTIC, temperature=0.7),
    "deterministic, truncated": Setting(SIBLINGS, deterministic, mode=Mode.DETERMINISTIC, top_k=3, top_p=0.7),
    "sampled, with probabilities": Setting(SIBLINGS, sampled, PROBABILITIES, Mode.SAMPLED, vocab=3),
    "sampled, with logits": Setting(SIBLINGS, sampled, LOGITS, Mode.SAMPLED, temperature=0.7, vocab=3),
    "sampled, truncated": Setting(THREE_SIBLINGS, sampled, LOGITS, Mode.SAMPLED, top_k=3, top_p=0.9),
    "sampled, more than the draft has": Setting(THREE_SIBLINGS, sampled, PROBABILITIES, Mode.SAMPLED, top_k=2),
    "deterministic, tested one by one": Setting(THREE_SIBLINGS, deterministic, PROBABILITIES, Mode.SAMPLED),
}


def check_chain_distribution(setting: Setting, verify: ChainRule) -> None:
    """The distribution of the text is the target's, for every draft."""

    def ask(cells: list[Cell]) -> list[VerifyResult]:
        drafted = stack("tokens", cells)[:, 1:]
        draft = None if setting.draft_kind is None else stack("draft_rows", cells)[:, :-1]
        batch = ChainBatch(**sampling(setting, cells), tokens=drafted, draft=draft)
        results = verify(batch)
        assert not results.status.any()
        return [
            VerifyResult(list(range(1, accepted + 1)), token)
            for accepted, token in zip(results.accepted.tolist(), results.next.tolist(), strict=True)
        ]

    check_distribution(setting, ask)


def check_tree_distribution(setting: Setting, verify: TreeRule) -> None:
    """The distribution of the text is the target's, for every draft."""

    def ask(cells: list[Cell]) -> list[VerifyResult]:
        draft = None if setting.draft_kind is None else stack("draft_rows", cells)
        tree = {"tokens": stack("tokens", cells), "parents": stack("parents", cells), "draft": draft}
        results = verify(TreeBatch(**sampling(setting, cells), **tree, mode=setting.mode))
        assert not results.status.any()
        ends = zip(results.path.tolist(), results.path_len.tolist(), results.next.tolist(), strict=True)
        return [VerifyResult(path[:length], token) for path, length, token in ends]

    check_distribution(setting, ask)


def stack(name: str, cells: list[Cell]) -> np.ndarray:
    """Return a field of the cells' cases as an array for implementations."""
    values = np.stack([getattr(cell.case, name) for cell in cells])
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def sampling(setting: Setting, cells: list[Cell]) -> dict[str, object]:
    """Return the fields that chains and trees share."""
    return {
        "target": stack("logits", cells),
        "draft_kind": setting.draft_kind or DraftKind.LOGITS,
        "temperature": np.full(len(cells), setting.temperature, dtype=np.float32),
        "top_k": np.full(len(cells), setting.top_k, dtype=np.int32),
        "top_p": np.full(len(cells), setting.top_p, dtype=np.float32),
        "uniforms": np.array([cell.lows for cell in cells], dtype=np.uint32),
    }


def check_distribution(setting: Setting, ask: Ask) -> None:
    """Compare an implementation's distribution with the target's: to 1e-6, and exactly where it is zero.

    Some tokens must be accepted, because a rule that accepts none would pass.
    """
    accepted = 0
    for seed in range(SEEDS):
        target = setting.logits(seed)
        boxes = boxes_of(setting, target, setting.logits(SEEDS + seed), ask)
        accepted += sum(len(box.result.path) for box in boxes)
        table = {prefix: setting.distribution_of(row) for prefix, row in target.items()}
        distribution, wanted = text_distribution(boxes, table), target_distribution(table)
        assert not distribution[wanted == 0.0].any(), "a text that the target never makes"
        assert np.abs(distribution - wanted).max() < DISTRIBUTION_TOLERANCE, (
            f"off by {np.abs(distribution - wanted).max():.1e}"
        )
    assert accepted, "nothing was accepted"


def boxes_of(setting: Setting, target: Table, draft: Table, ask: Ask) -> list[Box]:
    """Return the cells and their results for logits of every prefix."""
    zeros, beyond = (0,) * len(setting.parents), (LAST + 1,) * len(setting.parents)
    cells = [Cell(case, zeros, beyond) for case in setting.cases(target, draft)]
    for column in setting.columns:
        cells = _cut(cells, column, ask)
    results = ask(cells)
    ends = zip(cells, results, strict=True)
    return [Box(cell.case, result, _units(cell.lows), _units(cell.highs)) for cell, result in ends]


def _units(uniforms: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(uniform * 2.0**-32 for uniform in uniforms)


def _cut(cells: list[Cell], column: int, ask: Ask) -> list[Cell]:
    """Split cells along a column where the result changes, with later columns at their lows."""
    cut = []
    while cells:
        firsts, lasts = ask(cells), ask([cell.at(column, LAST) for cell in cells])
        pairs = list(zip(cells, firsts, lasts, strict=True))
        cut += [cell for cell, first, last in pairs if first == last]
        changing = [(cell, first) for cell, first, last in pairs if first != last]
        edges = _edges(changing, column, ask)
        cut += [cell.until(column, edge) for (cell, _), edge in zip(changing, edges, strict=True)]
        cells = [cell.at(column, edge) for (cell, _), edge in zip(changing, edges, strict=True)]
    return cut


def _edges(changing: list[tuple[Cell, VerifyResult]], column: int, ask: Ask) -> list[int]:
    """Return for each cell the first uniform at which its result differs from the result at its low."""
    inside = np.array([cell.lows[column] for cell, _ in changing], dtype=np.int64)
    beyond = np.full(len(changing), LAST, dtype=np.int64)
    while changing and (beyond - inside > 1).any():
        middle = (inside + beyond) // 2
        found = ask([cell.at(column, int(at)) for (cell, _), at in zip(changing, middle, strict=True)])
        same = np.array([result == first for result, (_, first) in zip(found, changing, strict=True)])
        inside, beyond = np.where(same, middle, inside), np.where(same, beyond, middle)
    return beyond.tolist()
