# SPDX-License-Identifier: Apache-2.0
"""The recurrent drafter in the engine: lossless, and drafting and accepting by the formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    SHAPES,
    assert_greedy_text,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    by_position,
    random_prompts,
)
from tests.methods.recurrent import (
    Drafter,
    convert_with,
    hidden_states,
    knowing_drafter,
    random_drafter,
)
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.engine.settings import EngineSettings
from trtspec.methods.redrafter.drafter import BeamLevel, merge

pytestmark = pytest.mark.integration

BEAMS, DRAFT_LEN, NEW_TOKENS = 4, 3, 40
KINDS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "sum": {"rnn": False},
    "no-first-layer": {"exit_dim": 64, "num_layers": 2},
    "no-blocks": {"num_layers": 0},
}
Load = Callable[..., Engine]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load an engine that drafts by beam search; closed at the end."""
    engines = []

    def load(target: Path, draft_len: int = DRAFT_LEN, beams: int = BEAMS, **changes: Any) -> Engine:
        settings = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | changes
        engines.append(Engine(target, None, EngineSettings("redrafter", draft_len, {"beams": beams}, **settings)))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_with_random_drafter_equals_transformers(shape: dict[str, Any], tmp_path: Path, load: Load) -> None:
    """The drafters are random and therefore hardly ever right."""
    source = make_model(tmp_path / "hf", **shape)
    head_root = random_drafter(2, rnn="family" not in shape or shape["family"] == "qwen3").save(tmp_path / "drafter")
    stats = assert_greedy_text(load(convert_with(source, head_root, tmp_path / "target")), reference_model(source))
    assert sum(each.drafted for each in stats) > 1000


class Knowing:
    """A target, and a drafter that was fitted to its own texts."""

    def __init__(self, root: Path, **kind: Any) -> None:
        self.source = make_model(root / "hf", "llama")
        self.model = reference_model(self.source)
        self.prompts = random_prompts(8)
        self.texts = [[*prompt, *greedy(self.model, list(prompt), NEW_TOKENS + 8)] for prompt in self.prompts]
        self.drafter = knowing_drafter(random_drafter(**kind), self.model, self.texts, DRAFT_LEN)
        self.head_root = self.drafter.save(root / "drafter")
        self.target = convert_with(self.source, self.head_root, root / "target")

    def expected(self, row: int, new_tokens: int, draft_len: int = DRAFT_LEN) -> tuple[list[int], Stats]:
        """Return transformers' greedy text after a prompt, and the simulated statistics of the drafter for it."""
        start = len(self.prompts[row])
        text = self.texts[row][: start + new_tokens]
        return text[start:], simulate(self.model, self.drafter, start, text, draft_len)


def simulate(model: Any, drafter: Drafter, prompt: int, text: list[int], draft_len: int) -> Stats:
    """Simulate beam search through a text: each distinct prefix of the beams is drafted once."""
    embedding, contexts = model.get_input_embeddings().weight.detach(), hidden_states(model, text)
    drafted, draft_steps, lengths = 0, 0, list[int]()
    at = prompt + 1  # the prompt's end gives the first token without a step
    while at < len(text):
        limit = min(draft_len, len(text) - at - 1)
        beams = drafter.beams(embedding, contexts[at - 2], text[at - 1], BEAMS, DRAFT_LEN)
        paths = {beam[:count] for beam in beams for count in range(1, limit + 1)}
        longest = max((count for count in range(1, limit + 1) if tuple(text[at : at + count]) in paths), default=0)
        drafted += len(paths)
        draft_steps += bool(paths)
        lengths.append(longest)
        at += longest + 1
    return Stats(prompt, len(text) - prompt, drafted, sum(lengths), len(lengths), by_position(lengths), draft_steps)


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Knowing:
    return Knowing(tmp_path_factory.mktemp("knowing"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_text_and_stats_equal_the_reference_implementation(kind: dict[str, Any], tmp_path: Path, load: Load) -> None:
    """The trees have a different shape at every step; some are accepted to their full depth."""
    knowing = Knowing(tmp_path, **kind)
    lengths = [NEW_TOKENS - 4 * row for row in range(8)]
    requests = [EngineRequest(prompt, length) for prompt, length in zip(knowing.prompts, lengths, strict=True)]
    found = load(knowing.target, max_batch_size=3, max_num_tokens=32).generate(requests)
    for row, result in enumerate(found):
        assert (list(result.ids), result.stats) == knowing.expected(row, lengths[row])
    assert sum((result.stats for result in found), Stats()).mean_accepted_len > 1.5


def test_greedy_text_with_accurate_drafter_equals_transformers(knowing: Knowing, load: Load) -> None:
    stats = assert_greedy_text(load(knowing.target), knowing.model)
    assert all(each.accepted for each in stats)


def test_request_draft_len_limits_the_depth_of_the_tree(knowing: Knowing, load: Load) -> None:
    """In one batch, the tree of each row is truncated separately."""
    depths = (0, 1, 2, 99)
    results = load(knowing.target).generate(
        [EngineRequest(knowing.prompts[0], 30, draft_len=depth) for depth in depths]
    )
    for depth, result in zip(depths, results, strict=True):
        assert (list(result.ids), result.stats) == knowing.expected(0, 30, min(depth, DRAFT_LEN))


def test_one_beam_drafts_a_chain(knowing: Knowing, load: Load) -> None:
    (result,) = load(knowing.target, beams=1).generate([EngineRequest(knowing.prompts[0], 30)])
    assert list(result.ids) == knowing.expected(0, 30)[0]
    assert 0 < result.stats.accepted < result.stats.drafted <= DRAFT_LEN * result.stats.steps


def test_sampled_results_are_the_same_in_a_batch_and_alone(knowing: Knowing, load: Load) -> None:
    """The batch also has greedy requests."""
    engine = load(knowing.target, max_batch_size=4)
    sampling = [SamplingOptions(0.8, seed=row) if row % 3 else SamplingOptions() for row in range(8)]
    requests = [EngineRequest(prompt, 20 + row, sampling[row]) for row, prompt in enumerate(knowing.prompts)]
    assert engine.generate(requests) == [engine.generate([request])[0] for request in requests]


@pytest.mark.parametrize(
    "how", [{"mapping": ParallelMapping(2, 2)}, {"scheme": Scheme("fp8_rowwise")}], ids=["ranks", "fp8"]
)
def test_split_or_quantized_target_text_is_the_same_with_and_without_drafter(
    how: dict[str, Any], knowing: Knowing, tmp_path: Path, load: Load
) -> None:
    """The drafter is on the last pipeline stage and is not quantized."""
    requests = [EngineRequest(prompt, 20) for prompt in knowing.prompts]
    found = load(convert_with(knowing.source, knowing.head_root, tmp_path / "target", **how)).generate(requests)
    alone = Engine(tmp_path / "target", None, EngineSettings(max_seq_len=128, device="cpu"))
    expected = alone.generate(requests)
    alone.close()
    assert [result.ids for result in found] == [result.ids for result in expected]
    if "mapping" in how:
        assert [result.stats for result in found] == [knowing.expected(row, 20)[1] for row in range(8)]
    assert sum(result.stats.accepted for result in found) > 0


@pytest.fixture
def small(tmp_path: Path, load: Load) -> tuple[Engine, Any]:
    """A target of three words."""
    source = make_model(tmp_path / "hf", **DISTRIBUTION_SHAPE)
    head_root = random_drafter(hidden=DISTRIBUTION_SHAPE["hidden_size"], vocab=3).save(tmp_path / "drafter")
    target = convert_with(source, head_root, tmp_path / "target")
    return load(target, 2, 2, max_seq_len=32), reference_model(source)


@pytest.mark.parametrize("sampling", [SamplingOptions(1.0), SamplingOptions(0.7, top_k=2)], ids=["plain", "truncated"])
def test_sampled_text_has_the_targets_distribution(
    sampling: SamplingOptions, small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_targets_distribution(*small, monkeypatch, sampling)


def test_acceptance_rule_without_residual_is_detected(
    small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_wrong_rule_is_seen(*small, monkeypatch)


def test_more_beams_than_vocabulary_entries_draft_the_complete_tree(
    small: tuple[Engine, Any], tmp_path: Path, load: Load
) -> None:
    result = load(tmp_path / "target", 3, 50, max_seq_len=32).generate([EngineRequest((1, 2, 0), 12)])[0]
    assert list(result.ids) == greedy(small[1], [1, 2, 0], 12)
    assert result.stats.drafted >= 3 + 9 + 27  # the first step drafts the complete tree


def test_beams_with_common_prefixes_are_merged_into_one_tree() -> None:
    levels = [BeamLevel([7, 8, 9], [0, 0, 0]), BeamLevel([1, 2, 3], [2, 0, 2]), BeamLevel([4, 5, 6], [0, 0, 1])]
    # 9 1 4, 9 1 5 and 7 2 6 remain: no beam continues 8 or 9 3
    assert merge(levels, 3) == ([7, 9, 1, 2, 4, 5, 6], [-1, 0, 0, 2, 1, 3, 3, 4])
    assert merge(levels, 2) == ([7, 9, 1, 2], [-1, 0, 0, 2, 1])
    assert merge(levels[:1], 1) == ([7, 8, 9], [-1, 0, 0, 0])


def test_checkpoint_without_drafter_is_rejected(knowing: Knowing, tmp_path: Path, load: Load) -> None:
    target = convert(knowing.source, tmp_path / "target")
    with pytest.raises(CheckpointError) as caught:
        load(target)
    assert str(caught.value).partition("\nhint: ")[0] == f"{target}/config.json: lacks 'redrafter_hidden_size'"
