# SPDX-License-Identifier: Apache-2.0
"""External drafts: the output distribution is the target's, the request ends, and other rows are not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests._support.tiny import convert, make_llama, make_model, reference_model
from tests.engine import lossless
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    engine_texts,
    let_rules_go_wrong,
    random_prompts,
    target_distribution,
)
from tests.kernels import reference
from tests.methods import eagle3_heads, heads, recurrent
from trtspec.core.errors import TrtspecError
from trtspec.engine.drafting.base import DraftTokens
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.engine.settings import EngineSettings
from trtspec.engine.speculator import ExternalDrafts

pytestmark = pytest.mark.integration

PROMPTS = random_prompts(6)
LEN = 24
MAX_LEN = 56  # of the engine without a drafter
Tokens = tuple[int, ...]
Drafting = Callable[[Tokens], Tokens]  # maps the text that follows to a draft


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("source") / "hf")


@pytest.fixture(scope="module")
def model(source: Path) -> Any:
    return reference_model(source)


@pytest.fixture(scope="module")
def texts(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Tokens]:
    """Return the target's continuations of the prompts, longer than the tests need."""
    settings = EngineSettings(max_seq_len=128, device="cpu")
    engine = Engine(convert(source, tmp_path_factory.mktemp("texts")), None, settings)
    results = engine.generate([EngineRequest(prompt, LEN + 8) for prompt in PROMPTS])
    engine.close()
    return [result.ids for result in results]


CHOICES = [[0], [1], [0, 0]]
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "none in chunks": {"max_num_tokens": 7},
    "draft_target": {"draft_len": 3},
    "ngram": {"draft_len": 3, "options": {"min_match": 1}},
    "lookahead": {"options": {"window": 3, "ngram": 3, "verification": 2}},
    "medusa": {"options": {"choices": CHOICES}},
    "eagle3": {"draft_len": 3},
    "eagle3 in chunks": {"draft_len": 3, "max_num_tokens": 7},
    "redrafter": {"draft_len": 3, "options": {"beams": 3}},
}


@pytest.fixture(scope="module", params=METHODS)
def engine(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Yield an engine of each method, some with prompts in small chunks."""
    method, *_ = request.param.split()
    root, draft = tmp_path_factory.mktemp(method), None
    if method == "medusa":
        head_root = heads.save_heads(root / "part", heads.random_heads(2))
        target = heads.convert_with(source, head_root, root / "target", CHOICES)
    elif method == "eagle3":
        head_root = eagle3_heads.save_head(eagle3_heads.random_head(), root / "head")
        target = eagle3_heads.convert_with(source, head_root, root / "target")
    elif method == "redrafter":
        target = recurrent.convert_with(source, recurrent.random_drafter().save(root / "head"), root / "target")
    else:
        target = convert(source, root / "target")
    if method == "draft_target":
        draft = convert(make_llama(root / "hf-draft", seed=1, num_hidden_layers=1), root / "draft")
    settings = METHODS[request.param] | {"max_batch_size": 4, "max_seq_len": 128, "device": "cpu"}
    engine = Engine(target, draft, EngineSettings(method, **settings))
    yield engine
    engine.close()


def right(length: int) -> Drafting:
    return lambda following: following[:length]


def wrong_from(place: int) -> Drafting:
    """Return a function for drafts of 5 tokens that are right up to a position."""
    return lambda following: (*following[:place], *((token + 1) % 64 for token in following[place:5]))


DRAFTINGS = {"right": right(4), "wrong": wrong_from(0), "partly-right": wrong_from(2), "nothing": right(0)}


def called(engine: Engine, prompt: Tokens, expected: Tokens, drafting: Drafting) -> Tokens:
    """Generate a text with a sequence of requests, each with a draft, like a BLS model in front of the engine."""
    made: Tokens = ()
    while len(made) < LEN:
        draft = drafting(expected[len(made) :])
        (result,) = engine.generate([EngineRequest(prompt + made, LEN - len(made), draft_ids=draft)])
        made += result.ids
    return made


class TestGreedyText:
    @pytest.mark.parametrize("drafting", DRAFTINGS.values(), ids=DRAFTINGS)
    def test_text_of_many_calls_equals_the_targets(
        self, engine: Engine, texts: list[Tokens], drafting: Drafting
    ) -> None:
        for prompt, expected in zip(PROMPTS[:2], texts, strict=False):
            assert called(engine, prompt, expected, drafting) == expected[:LEN]

    def test_text_of_one_call_ends_after_the_first_wrong_token_in_any_batch(
        self, engine: Engine, texts: list[Tokens]
    ) -> None:
        """Right, wrong and missing drafts of different lengths; only requests without a draft continue to decode."""
        draftings = [right(5), wrong_from(0), right(0), wrong_from(3), right(1), right(9)]
        lens = [6, 1, LEN, 4, 2, 10]
        requests = [
            EngineRequest(prompt, LEN, draft_ids=drafting(text))
            for prompt, text, drafting in zip(PROMPTS, texts, draftings, strict=True)
        ]
        together = engine.generate(requests)
        assert [result.ids for result in together] == [text[:n] for text, n in zip(texts, lens, strict=True)]
        assert {result.finish_reason for result in together} == {"length"}
        assert together == [engine.generate([request])[0] for request in requests]

    def test_drafts_are_independent_of_external_drafts_in_other_rows(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone = EngineRequest(PROMPTS[1], LEN)
        guided = [EngineRequest(prompt, LEN, draft_ids=(1,) * 9) for prompt in PROMPTS[2:4]]
        assert drafts(engine, [guided[0], alone, guided[1]], monkeypatch) == drafts(engine, [alone], monkeypatch)


def drafts(engine: Engine, requests: list[EngineRequest], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return all prefixes of texts with their drafts."""
    noted: list[Any] = []
    propose = engine.speculator.drafter.propose

    def noting(texts: Sequence[Sequence[int]], *how: Any) -> DraftTokens:
        draft = propose(texts, *how)
        noted.append(([list(text) for text in texts], draft.tokens.tolist()))
        return draft

    with monkeypatch.context() as patch:
        patch.setattr(engine.speculator.drafter, "propose", noting)
        engine.generate(requests)
    assert bool(noted) == (engine.settings.method != "none")
    return noted


@pytest.fixture(scope="module")
def plain(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Yield an engine without a drafter."""
    settings = EngineSettings(max_batch_size=4, max_seq_len=MAX_LEN, device="cpu")
    engine = Engine(convert(source, tmp_path_factory.mktemp("plain")), None, settings)
    yield engine
    engine.close()


class TestStats:
    @pytest.mark.parametrize(("place", "counts"), [(5, (5, 5)), (2, (5, 2)), (0, (5, 0))])
    def test_external_draft_is_counted_as_one_step(
        self, plain: Engine, texts: list[Tokens], place: int, counts: tuple[int, int]
    ) -> None:
        (result,) = plain.generate([EngineRequest(PROMPTS[0], LEN, draft_ids=wrong_from(place)(texts[0]))])
        stats = result.stats
        assert (stats.drafted, stats.accepted) == counts
        assert (stats.steps, stats.new_tokens) == (1, counts[1] + 1)

    def test_draft_tokens_beyond_the_length_limit_are_not_counted(self, plain: Engine, texts: list[Tokens]) -> None:
        (result,) = plain.generate([EngineRequest(PROMPTS[0], 3, draft_ids=texts[0][:9])])
        assert (result.ids, result.finish_reason) == (texts[0][:3], "length")
        assert (result.stats.drafted, result.stats.accepted, result.stats.steps) == (2, 2, 1)
        (result,) = plain.generate([EngineRequest(PROMPTS[0], 1, draft_ids=texts[0][:9])])
        assert (result.ids, result.stats.drafted, result.stats.steps) == (texts[0][:1], 0, 0)

    def test_draft_up_to_the_last_position_is_accepted(self, plain: Engine, texts: list[Tokens]) -> None:
        room = MAX_LEN - len(PROMPTS[0])
        (result,) = plain.generate([EngineRequest(PROMPTS[0], room, draft_ids=texts[0][: room - 1])])
        assert result.ids == texts[0][:room]
        assert result.stats.accepted == room - 1


class TestTheEnd:
    def test_end_id_in_the_draft_ends_the_text(self, plain: Engine, texts: list[Tokens]) -> None:
        end = texts[0][3]
        until = texts[0].index(end)
        (result,) = plain.generate([EngineRequest(PROMPTS[0], LEN, end_ids=(end,), draft_ids=texts[0][:8])])
        assert (result.ids, result.finish_reason) == (texts[0][:until], "end_id")


class TestNeighbours:
    def test_sampled_results_are_the_same_in_a_batch_and_alone(self, plain: Engine) -> None:
        """A batch of greedy and sampled rows, with drafts, with drafts and logits, and without drafts."""
        rng = np.random.default_rng(3)
        requests = []
        for seed in range(8):
            length = seed % 4
            draft = tuple(rng.integers(0, 64, length).tolist())
            logits = rng.normal(size=(length, 64)).astype(np.float32) if seed % 2 else None
            how = SamplingOptions(0.0 if seed == 5 else 0.9, top_k=20 * (seed == 3), seed=seed)
            requests.append(EngineRequest(PROMPTS[seed % 6], 8, how, draft_ids=draft, draft_logits=logits))
        assert plain.generate(requests) == [plain.generate([request])[0] for request in requests]

    def test_each_request_uses_random_numbers_of_its_seed_in_order(self) -> None:
        """The first numbers of the seed's stream are for the draft's tokens, the following one for the next token."""
        batch = [
            RunningRequest(EngineRequest((1,), 9, SamplingOptions(1.0, seed=7), draft_ids=(2,) * n), print, None)
            for n in (2, 0, 3)
        ]
        stream = np.random.Generator(np.random.Philox(7)).integers(0, 1 << 32, 4) / 2.0**32
        a, b, c, d = stream.tolist()
        external = ExternalDrafts(batch, torch.device("cpu"))
        assert external.uniforms().tolist() == [[a, b, 0.0, c], [0.0, 0.0, 0.0, a], [a, b, c, d]]
        assert batch[0].uniforms(1).tolist() == [d]

    def test_draft_probabilities_come_from_the_logits_not_the_sampling_options(self) -> None:
        """Tokens without logits count as deterministic."""
        logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32))
        asked = [EngineRequest((1,), 9, SamplingOptions(0.5, top_k=1), draft_ids=(0, 2), draft_logits=logits),
                 EngineRequest((1,), 9, SamplingOptions(1.0), draft_ids=(1,))]  # fmt: skip
        probs = ExternalDrafts([RunningRequest(request, print, None) for request in asked], torch.device("cpu")).probs()
        assert probs is not None
        np.testing.assert_allclose(probs[0], [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], rtol=1e-6)
        assert probs[1, 0].tolist() == [0.0, 1.0, 0.0]


# -- the exact distribution --------------------------------------------------------------------------------------------

PROMPT = (1, 2, 0)
NEW = 3
SAMPLINGS = [SamplingOptions(1.0), SamplingOptions(0.6, top_k=2), SamplingOptions(1.3, top_p=0.8)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Any]]:
    """Yield an engine on a vocabulary of three, and transformers' model of its target."""
    root = tmp_path_factory.mktemp("small")
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    engine = Engine(convert(source, root / "c"), None, EngineSettings(max_seq_len=32, device="cpu"))
    yield engine, reference_model(source)
    engine.close()


def draft_logits(prefix: tuple[int, ...]) -> np.ndarray:
    """Return an arbitrary draft's logits [vocab] after a prefix."""
    return np.random.default_rng(prefix).normal(size=3).astype(np.float32) * 1.5


@dataclass
class Distributions:
    """The distributions of texts of `NEW` tokens after the prompt."""

    engine: Engine
    monkeypatch: pytest.MonkeyPatch
    wanted: np.ndarray

    def with_draft(self, asked: EngineRequest) -> np.ndarray:
        """Return the distribution of the engine's output for a request, continued by the target."""
        distribution = np.zeros_like(self.wanted)
        for ids, weight in engine_texts(self.engine, self.monkeypatch, asked).items():
            distribution[ids] += weight * self.wanted[ids] / self.wanted[ids].sum()
        return distribution

    def with_drawn_draft(self, sampling: SamplingOptions, drawn_by: SamplingOptions) -> np.ndarray:
        """Return it for two tokens with the draft's logits, sampled from these with separate sampling options."""
        distribution = np.zeros_like(self.wanted)
        for tokens in product(range(3), repeat=2):
            rows = np.stack([draft_logits((9, *tokens[:place])) for place in range(2)])
            weight = np.prod([probs_for(row, drawn_by)[token] for row, token in zip(rows, tokens, strict=True)])
            if weight > 0:
                asked = EngineRequest(PROMPT, NEW, sampling, draft_ids=tokens, draft_logits=rows)
                distribution += float(weight) * self.with_draft(asked)
        return distribution


def probs_for(row: np.ndarray, sampling: SamplingOptions) -> np.ndarray:
    return reference.sampling_probs(row.astype(np.float64), sampling.temperature, sampling.top_k, sampling.top_p)


class TestTheDistribution:
    @pytest.fixture(params=SAMPLINGS, ids=str)
    def sampling(self, request: pytest.FixtureRequest) -> SamplingOptions:
        return request.param

    @pytest.fixture
    def distributions(
        self, small: tuple[Engine, Any], sampling: SamplingOptions, monkeypatch: pytest.MonkeyPatch
    ) -> Distributions:
        engine, model = small
        return Distributions(engine, monkeypatch, target_distribution(model, PROMPT, sampling, NEW))

    @pytest.mark.parametrize("tokens", [(0,), (2, 1), (1, 1), (0, 2, 2, 1)], ids=str)
    def test_distribution_with_fixed_draft_tokens_equals_the_targets(
        self, distributions: Distributions, sampling: SamplingOptions, tokens: tuple[int, ...]
    ) -> None:
        distribution = distributions.with_draft(EngineRequest(PROMPT, NEW, sampling, draft_ids=tokens))
        np.testing.assert_allclose(distribution, distributions.wanted, atol=2e-5)

    def test_distribution_with_drafts_sampled_from_their_logits_equals_the_targets(
        self, distributions: Distributions, sampling: SamplingOptions
    ) -> None:
        distribution = distributions.with_drawn_draft(sampling, drawn_by=SamplingOptions(1.0))
        np.testing.assert_allclose(distribution, distributions.wanted, atol=2e-5)

    @pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
    def test_distribution_differs_for_drafts_sampled_with_the_requests_options(
        self, distributions: Distributions, sampling: SamplingOptions
    ) -> None:
        """The logits are used, and used without the request's sampling options."""
        distribution = distributions.with_drawn_draft(sampling, drawn_by=sampling)
        assert np.abs(distribution - distributions.wanted).sum() > 0.01

    @pytest.mark.parametrize("sampling", SAMPLINGS[:1], ids=str)
    def test_distribution_differs_with_an_acceptance_rule_without_residual(
        self, distributions: Distributions, sampling: SamplingOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        let_rules_go_wrong(distributions.engine, monkeypatch)
        chosen = distributions.with_draft(EngineRequest(PROMPT, NEW, sampling, draft_ids=(2, 1)))
        drawn = distributions.with_drawn_draft(sampling, drawn_by=sampling)
        assert np.abs(chosen - distributions.wanted).sum() > 0.01
        assert np.abs(drawn - distributions.wanted).sum() > 0.01

    def test_draft_logits_raise_the_acceptance_of_sampled_drafts(self, plain: Engine, model: Any) -> None:
        """Drafts sampled from the target's distribution are all accepted with logits, but only some without."""
        logits = lossless.logits_along(model, PROMPTS[0], (3, 4, 5))
        rows = logits[:1].repeat(3, 0)  # only the first row is used, from which the first token is sampled
        accepted = {True: 0, False: 0}
        for seed, says in product(range(40), (True, False)):
            probs = reference.sampling_probs(rows[0].astype(np.float64), 1.0, 0, 1.0)
            token = int(np.random.default_rng(seed).choice(64, p=probs))
            asked = EngineRequest(PROMPTS[0], 2, SamplingOptions(1.0, seed=seed), draft_ids=(token,),
                            draft_logits=rows[:1] if says else None)  # fmt: skip
            accepted[says] += plain.generate([asked])[0].stats.accepted
        assert accepted[True] == 40
        assert accepted[False] < 20


# -- logits of the text ------------------------------------------------------------------------------------------------


class TestGenerationLogits:
    @pytest.mark.parametrize(
        "how", [SamplingOptions(), SamplingOptions(0.7, top_k=5, seed=3)], ids=["greedy", "sampled"]
    )
    def test_logits_equal_transformers(self, engine: Engine, model: Any, how: SamplingOptions) -> None:
        """With drafts and without, in a batch with a request that does not want logits."""
        requests = [
            EngineRequest(PROMPTS[0], LEN, how, return_logits=True),
            EngineRequest(PROMPTS[1], LEN, how, return_logits=True, draft_ids=(1, 2, 3)),
            EngineRequest(PROMPTS[2], LEN, how),
        ]
        *asked, silent = engine.generate(requests)
        assert silent.scores is None
        for request, result in zip(requests, asked, strict=False):
            assert result.scores is not None
            assert result.scores.logits.dtype == np.float32
            expected = lossless.logits_along(model, request.prompt_ids, result.ids)
            np.testing.assert_allclose(result.scores.logits, expected, atol=1e-4)

    def test_logits_of_accepted_drafts_equal_transformers(self, plain: Engine, model: Any, texts: list[Tokens]) -> None:
        asked = EngineRequest(PROMPTS[0], LEN, return_logits=True, draft_ids=texts[0][:5])
        (result,) = plain.generate([asked])
        assert result.stats.accepted == 5
        np.testing.assert_allclose(
            result.scores.logits, lossless.logits_along(model, PROMPTS[0], texts[0][:6]), atol=1e-4
        )


# -- rejected requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"draft_ids": (64,)}, "the draft has a token id outside 0..63"),
        (
            {"draft_ids": (1,), "draft_logits": np.zeros((1, 63), np.float32)},
            "draft logits are 1 x 63, expected 1 x 64: tokens and vocabulary",
        ),
        ({"options": {"window": 2}}, "window is 2, but requests cannot set window for the engine's method"),
    ],
)
def test_invalid_draft_or_option_is_rejected_with_the_reason(
    plain: Engine, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrtspecError, match=message):
        plain.submit(EngineRequest(PROMPTS[0], 4, **asked), print)
