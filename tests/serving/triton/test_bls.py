# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding with two models: output distribution, greedy output, stop conditions, and calls of the models.

The models are tables of logits. The target follows the rule of TensorRT-LLM's kernel (NVIDIA/TensorRT-LLM:cpp/
tensorrt_llm/kernels/speculativeDecoding/externalDraftTokensKernels.cu@2931b93f), reimplemented here with a fork at
every random choice, so that the distribution of a whole text is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.engine.lossless import Fork
from tests.kernels.reference import residual, sampling_probs
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.circuit_breaker import CircuitBreaker
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.generation.suffixes import SuffixIndex
from trtspec.engine.generation.text import StopConditions
from trtspec.serving.triton.python_models.adaptive_draft_len import AdaptiveDraftLen, DraftLenChoice
from trtspec.serving.triton.python_models.bls import (
    ALONE_TOKENS,
    NO_ID,
    DraftFailed,
    FallbackDrafter,
    GenerationRequest,
    LookupDrafter,
    ModelAnswer,
    ModelCall,
    RemoteModelDrafter,
    TokenDraft,
    TokenDrafter,
    generate,
)

VOCAB, END, LENGTH = 3, 2, 4
PROMPT = (0, 1)
Text = tuple[int, ...]
SAMPLED = [SamplingOptions(1.0), SamplingOptions(0.6), SamplingOptions(1.4, top_k=2), SamplingOptions(0.8, top_p=0.7)]


def table(seed: int) -> dict[Text, np.ndarray]:
    """Return logits [VOCAB] for the last two tokens of the output."""
    rng = np.random.default_rng(seed)
    return {tail: rng.normal(0.0, 1.5, VOCAB) for size in range(3) for tail in product(range(VOCAB), repeat=size)}


class TableModel:
    """A model whose logits depend on the last two tokens of the output; records its calls."""

    def __init__(self, seed: int, fork: Fork | None = None) -> None:
        self.table, self.fork, self.calls = table(seed), fork, list[ModelCall]()

    def logits(self, text: list[int]) -> np.ndarray:
        output = text[len(PROMPT) :]
        return self.table[tuple(output[-2:])]

    def distribution(self, text: list[int], sampling: SamplingOptions) -> np.ndarray:
        return sampling_probs(
            self.logits(text), 0.0 if sampling.greedy else sampling.temperature, sampling.top_k, sampling.top_p
        )

    def draw(self, distribution: np.ndarray) -> int:
        return self.fork.choose(list(enumerate(distribution))) if self.fork else int(distribution.argmax())

    def alone(self, call: ModelCall) -> ModelAnswer:
        text, rows = list(call.text), []
        for _ in range(call.new_tokens):
            token = self.draw(self.distribution(text, call.sampling))
            if token == call.end_id:
                break
            rows.append(self.logits(text))
            text.append(token)
        logits = np.array(rows, np.float32).reshape(-1, VOCAB) if call.wants_logits else None
        return ModelAnswer(text[len(call.text) :], logits)

    def __call__(self, call: ModelCall) -> Iterator[ModelAnswer]:
        self.calls.append(call)
        yield self.alone(call)


class TableTarget(TableModel):
    """Verifies a draft as TensorRT-LLM does and ends there, or optionally continues to the requested length."""

    goes_on = False

    def __call__(self, call: ModelCall) -> Iterator[ModelAnswer]:
        self.calls.append(call)
        if not call.draft.ids:
            yield self.alone(call)
            return
        given = self.verify(call)
        if self.goes_on:
            rest = replace(call, text=[*call.text, *given], new_tokens=call.new_tokens - len(given))
            given += self.alone(rest).ids
        yield ModelAnswer(given)

    def verify(self, call: ModelCall) -> list[int]:
        text = list(call.text)
        for place, token in enumerate(call.draft.ids):
            distribution = self.distribution(text, call.sampling)
            if call.draft.logits is None:
                if self.draw(distribution) != token:
                    return [*text[len(call.text) :], self.draw(distribution)]  # resampled from the whole distribution
            else:
                drawn_by = sampling_probs(call.draft.logits[place].astype(np.float64), 1.0, 0, 1.0)
                chance = min(1.0, distribution[token] / drawn_by[token])
                if not self.choose(chance):
                    return [*text[len(call.text) :], self.draw(residual(distribution, drawn_by))]
            text.append(token)
        return [*text[len(call.text) :], self.draw(self.distribution(text, call.sampling))]

    def choose(self, chance: float) -> bool:
        return self.fork.choose([(True, chance), (False, 1.0 - chance)]) if self.fork else chance >= 1.0


ENDLESS, ENDING = StopConditions(frozenset()), StopConditions(frozenset({END}))


def job(
    sampling: SamplingOptions, draft_len: int = 2, endings: StopConditions = ENDING, **changes
) -> GenerationRequest:
    call = ModelCall(PROMPT, LENGTH, sampling, next(iter(endings.end_ids), NO_ID))
    return GenerationRequest(replace(call, **changes), draft_len, endings)


def model_drafter(model: TableModel, sampling: SamplingOptions, **options) -> TokenDrafter:
    return RemoteModelDrafter(model, sampling, **{"draws": True, **options})


def lookup_drafter(model: TableModel, sampling: SamplingOptions) -> TokenDrafter:
    return LookupDrafter(SuffixIndex(4), 1)


def said(asked: GenerationRequest, target: TableModel, drafter: TokenDrafter, vocab_size: int = VOCAB) -> Text:
    """Return the text, with END if it ended by itself."""
    steps = list(generate(asked, target, drafter, vocab_size))
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    ids = [token for step in steps for token in step.ids]
    return (*ids, END) if steps[-1].finish_reason == "end_id" else tuple(ids)


def distribution_of(
    asked: GenerationRequest, drafter_of, vocab_size: int = VOCAB, target_class=TableTarget
) -> dict[Text, float]:
    """Return the distribution of the text generated by target and drafter."""
    fork, distribution = Fork(), defaultdict(float)
    for _ in fork.runs():
        target, draft = target_class(1, fork), TableModel(2, fork)
        text = said(asked, target, drafter_of(draft, asked.call.sampling), vocab_size)
        distribution[text] += fork.weight
    return dict(distribution)


def distribution_alone(asked: GenerationRequest) -> dict[Text, float]:
    """Return the distribution of the target alone, computed from its table."""
    target, distribution = TableModel(1), {}

    def grow(output: Text, weight: float) -> None:
        if len(output) == asked.call.new_tokens or output[-1:] == (END,):
            distribution[output] = weight
            return
        for token, share in enumerate(target.distribution([*PROMPT, *output], asked.call.sampling)):
            if share > 0.0:
                grow((*output, token), weight * share)

    grow((), 1.0)
    return distribution


def distance(distribution: dict[Text, float], other: dict[Text, float]) -> float:
    return max(abs(distribution.get(text, 0.0) - other.get(text, 0.0)) for text in {*distribution, *other})


class GoingOn(TableTarget):
    goes_on = True


@pytest.mark.slow
@pytest.mark.parametrize("target_class", [TableTarget, GoingOn])
@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
@pytest.mark.parametrize(
    "drafter_of",
    [
        model_drafter,
        lambda model, sampling: model_drafter(model, sampling, draws=False),
        lambda model, sampling: model_drafter(model, sampling, stop_below=0.5),
        lambda model, sampling: model_drafter(model, sampling, fast_logits=True),
        lookup_drafter,
    ],
    ids=["drawn", "chosen", "drawn-while-sure", "drawn-by-fast-logits", "looked-up"],
)
def test_sampled_text_has_the_distribution_of_the_target(drafter_of, sampling: SamplingOptions, target_class) -> None:
    asked = job(sampling)
    distribution = distribution_of(asked, drafter_of, target_class=target_class)
    assert sum(distribution.values()) == pytest.approx(1.0, abs=1e-6)
    assert distance(distribution, distribution_alone(asked)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter_of", [lambda model, sampling: model_drafter(model, sampling, draws=False), lookup_drafter]
)
def test_drafts_without_logits_change_the_distribution(drafter_of) -> None:
    asked = job(SamplingOptions(1.0))
    assert distance(distribution_of(asked, drafter_of, vocab_size=0), distribution_alone(asked)) > 0.01


@pytest.mark.slow
def test_draft_logits_at_another_temperature_change_the_distribution() -> None:
    """The reported draft logits must be those that the draft was sampled from."""

    class Scaled(RemoteModelDrafter):
        def propose(self, *given) -> TokenDraft:
            guess = super().propose(*given)
            return replace(guess, logits=guess.logits * 0.5)

    asked = job(SamplingOptions(0.6))
    distribution = distribution_of(asked, lambda model, sampling: Scaled(model, sampling, draws=True))
    assert distance(distribution, distribution_alone(asked)) > 0.01


@pytest.mark.parametrize("draft_len", [0, 1, 2, 5, 50])
@pytest.mark.parametrize("target_class", [TableTarget, GoingOn])
@pytest.mark.parametrize("drafter_of", [model_drafter, lookup_drafter], ids=["model", "lookup"])
@pytest.mark.parametrize("endings", [ENDLESS, ENDING], ids=["endless", "ending"])
def test_greedy_text_equals_the_target(draft_len: int, target_class, drafter_of, endings: StopConditions) -> None:
    asked = job(SamplingOptions(), draft_len, new_tokens=30, endings=endings)
    target, ids = target_class(1), list[int]()
    while len(ids) < asked.call.new_tokens and (endings is ENDLESS or ids[-1:] != [END]):
        ids.append(int(target.logits([*PROMPT, *ids]).argmax()))
    assert said(asked, target, drafter_of(TableModel(2), asked.call.sampling)) == tuple(ids)


def test_top_k_1_is_greedy_and_sends_drafts_without_logits() -> None:
    asked, target = job(SamplingOptions(0.9, top_k=1)), TableTarget(1)
    said(asked, target, model_drafter(TableModel(2), asked.call.sampling))
    assert all(call.draft.logits is None for call in target.calls)
    assert any(call.draft.ids for call in target.calls)


def test_call_seeds_are_distinct_and_reproducible() -> None:
    def seeds(seed: int) -> list[int]:
        asked, target, draft = (
            job(SamplingOptions(1.0, seed=seed), new_tokens=20, endings=ENDLESS),
            TableTarget(1),
            TableModel(2),
        )
        list(generate(asked, target, model_drafter(draft, asked.call.sampling), VOCAB))
        return [call.sampling.seed for call in (*target.calls, *draft.calls)]

    assert len(set(seeds(7))) == len(seeds(7)) > 10
    assert seeds(7) == seeds(7)
    assert not set(seeds(7)) & set(seeds(8))
    assert all(0 <= seed < 2**64 for seed in seeds(7))


def test_draft_length_leaves_room_for_one_target_token() -> None:
    asked, target, draft = job(SamplingOptions(), 50, new_tokens=9, endings=ENDLESS), TableTarget(1), TableModel(1)
    [step, *_] = steps = list(generate(asked, target, model_drafter(draft, asked.call.sampling), VOCAB))
    assert (draft.calls[0].new_tokens, target.calls[0].new_tokens) == (8, 9)
    assert (step.drafted, step.accepted, len(step.ids), step.finish_reason) == (8, 8, 9, "length")
    assert len(steps) == 1


def test_last_token_is_generated_without_a_draft() -> None:
    asked, target, draft = job(SamplingOptions(), new_tokens=1, endings=ENDLESS), TableTarget(1), TableModel(2)
    assert len(said(asked, target, model_drafter(draft, asked.call.sampling))) == 1
    assert draft.calls == []
    assert target.calls[0].new_tokens == 1


def test_step_counts_of_drafted_and_accepted_tokens_add_up() -> None:
    asked = job(SamplingOptions(), 3, new_tokens=40, endings=ENDLESS)
    own = list(generate(asked, TableTarget(1), model_drafter(TableModel(1), asked.call.sampling), VOCAB))
    assert sum(step.accepted for step in own) == sum(step.drafted for step in own) == 30
    other = list(generate(asked, TableTarget(1), model_drafter(TableModel(5), asked.call.sampling), VOCAB))
    accepted, drafted = sum(step.accepted for step in other), sum(step.drafted for step in other)
    assert 0 <= accepted < drafted
    assert accepted + len(other) == 40, "each step yields one token more than it accepts"


def test_target_without_drafter_is_called_once_with_all_stop_conditions() -> None:
    class Streaming(TableTarget):
        def __call__(self, call: ModelCall) -> Iterator[ModelAnswer]:
            self.calls.append(call)
            yield from (ModelAnswer([token]) for token in self.alone(call).ids)

    told = {"end_id": 77, "stop_words": [[1, 0, 2]], "lookahead": (3, 2, 1), "streams": True}
    asked = job(SamplingOptions(0.5, seed=9), 0, new_tokens=99, endings=ENDLESS, **told)
    target = Streaming(1)
    steps = list(generate(asked, target, None))
    assert [len(step.ids) for step in steps] == [1] * 99
    assert [step.finish_reason for step in steps] == [None] * 98 + ["length"]
    [call] = target.calls
    assert (call.new_tokens, call.draft, call.wants_counts) == (99, TokenDraft(), True)
    assert {name: getattr(call, name) for name in told} == told
    assert call.sampling == asked.call.sampling, "the text must equal the target's own with this seed"


def test_draft_counts_of_a_self_drafting_target_are_forwarded() -> None:
    answers = [ModelAnswer([0, 1], None, 3, 1), ModelAnswer([], None, 2, 0), ModelAnswer([1, 1, 0], None, 4, 2)]

    def target(call: ModelCall) -> list[ModelAnswer]:
        return answers

    steps = list(generate(job(SamplingOptions(), 0, new_tokens=9), target, None))
    assert [(step.ids, step.drafted, step.accepted) for step in steps] == [
        ([0, 1], 3, 1),
        ([], 2, 0),
        ([1, 1, 0], 4, 2),
        ([], 0, 0),
    ]
    assert steps[-1].finish_reason == "end_id"


def test_verification_call_has_no_end_id_and_no_streaming() -> None:
    asked, target = job(SamplingOptions(), streams=True), TableTarget(1)
    said(asked, target, model_drafter(TableModel(2), asked.call.sampling))
    assert all((call.end_id, call.streams) == (NO_ID, False) for call in target.calls if call.draft.ids)


def test_empty_target_answer_is_not_counted_as_a_verification() -> None:
    asked, draft = job(SamplingOptions(), 5, new_tokens=3, endings=ENDLESS), Scripted(ModelAnswer([0, 1]))

    def target(call: ModelCall) -> list[ModelAnswer]:
        return [ModelAnswer([]), ModelAnswer([0, 1, 1])]

    [step] = generate(asked, target, RemoteModelDrafter(draft, asked.call.sampling, draws=True))
    assert (step.ids, step.drafted, step.accepted) == ([0, 1, 1], 2, 2)


class Scripted:
    """A model with scripted answers, one per call."""

    def __init__(self, *answers: ModelAnswer) -> None:
        self.answers, self.calls = list(answers), list[ModelCall]()

    def __call__(self, call: ModelCall) -> list[ModelAnswer]:
        self.calls.append(call)
        return [self.answers.pop(0)]


def test_short_or_empty_draft_is_verified_unchanged() -> None:
    asked = job(SamplingOptions(), 5, new_tokens=4, endings=ENDLESS)
    draft = Scripted(ModelAnswer([0]), ModelAnswer([]), ModelAnswer([]))
    target = Scripted(ModelAnswer([0, 1]), ModelAnswer([1]), ModelAnswer([0]))
    assert said(asked, target, RemoteModelDrafter(draft, asked.call.sampling, draws=True)) == (0, 1, 1, 0)
    assert [(list(call.draft.ids), call.new_tokens) for call in target.calls] == [([0], 2), ([], 1), ([], 1)]


def test_empty_target_answer_ends_the_generation() -> None:
    asked = job(SamplingOptions(), 0)
    [step] = generate(asked, Scripted(ModelAnswer([])), LookupDrafter(SuffixIndex(4), 1))
    assert (step.ids, step.finish_reason) == ([], "end_id")


def test_tokens_after_the_end_id_are_discarded() -> None:
    asked = job(SamplingOptions(), 3, new_tokens=9)
    draft, target = Scripted(ModelAnswer([0, END, 1])), Scripted(ModelAnswer([0, END, 1, 1]))
    [step] = generate(asked, target, RemoteModelDrafter(draft, asked.call.sampling, draws=True))
    assert (step.ids, step.finish_reason, step.drafted, step.accepted) == ([0], "end_id", 3, 3)


def test_draft_model_without_logits_is_an_error_with_a_hint() -> None:
    asked = job(SamplingOptions(1.0))
    drafter = RemoteModelDrafter(Scripted(ModelAnswer([0, 1])), asked.call.sampling, draws=True)
    with pytest.raises(TrtspecError, match="the draft model gave no logits") as caught:
        list(generate(asked, TableTarget(1), drafter))
    assert caught.value.hint == "build its engine to gather generation logits"


def test_draft_is_truncated_before_a_token_with_low_confidence() -> None:
    sure, unsure = [4.0, 0.0, 0.0], [1.0, 0.9, 0.8]
    draft = Scripted(ModelAnswer([0, 1, 0], np.array([sure, unsure, sure], np.float32)))
    drafter = RemoteModelDrafter(draft, SamplingOptions(), draws=True, stop_below=0.6)
    assert list(drafter.propose([0], 0, 3).ids) == [0]


def test_draft_model_samples_with_temperature_only_and_scales_its_logits() -> None:
    logits = np.array([[1.0, 2.0, 3.0]], np.float32)
    draft = Scripted(ModelAnswer([0], logits), ModelAnswer([0], logits))
    guess = RemoteModelDrafter(draft, SamplingOptions(0.5, top_k=2, top_p=0.9), draws=True).propose([0], 0, 1)
    assert (draft.calls[0].sampling.temperature, draft.calls[0].sampling.top_k, draft.calls[0].sampling.top_p) == (
        0.5,
        0,
        1.0,
    )
    assert guess.logits.tolist() == [[2.0, 4.0, 6.0]]
    fast = RemoteModelDrafter(draft, SamplingOptions(0.5), draws=False, fast_logits=True).propose([0], 0, 1)
    assert fast.logits is logits, "the location of the logits must be passed on unchanged"
    assert draft.calls[1].sampling.temperature == 1.0


def test_lookup_draft_has_one_hot_probabilities() -> None:
    asked, target = job(SamplingOptions(1.0), text=(0, 1, 0, 1), new_tokens=9), Scripted(ModelAnswer([0, END]))
    list(generate(asked, target, lookup_drafter(TableModel(2), asked.call.sampling), VOCAB))
    guess = target.calls[0].draft
    assert list(guess.ids) == [0, 1]
    assert np.allclose(
        [sampling_probs(row.astype(np.float64), 1.0, 0, 1.0) for row in guess.logits], np.eye(VOCAB)[[0, 1]]
    )


class Failing(TokenDrafter):
    """Drafts correctly, except for the named calls, which fail or are refused."""

    def __init__(self, target: TableModel, failing: Container[int] = (), refusing: Container[int] = ()) -> None:
        self.drafter = RemoteModelDrafter(TableModel(1), SamplingOptions(), draws=False)
        self.failing, self.refusing, self.calls = failing, refusing, 0

    def propose(self, text: Sequence[int], position: int, at_most: int) -> TokenDraft:
        self.calls += 1
        if self.calls in self.failing:
            raise DraftFailed("no answer in time")
        if self.calls in self.refusing:
            raise TrtspecError("the prompt is too long")
        return self.drafter.propose(text, position, at_most)


def guarded(drafter: TokenDrafter, breaker: CircuitBreaker | None = None, lengths: AdaptiveDraftLen | None = None):
    fallbacks: list[str] = []
    return FallbackDrafter(
        drafter, breaker or CircuitBreaker(), lengths, lambda why, _: fallbacks.append(why)
    ), fallbacks


LONG = job(SamplingOptions(), 3, new_tokens=200, endings=ENDLESS)


def whole(asked: GenerationRequest) -> Text:
    return said(asked, TableTarget(1), model_drafter(TableModel(1), asked.call.sampling))


@pytest.mark.parametrize("failing", [{1}, {3}, {2, 4, 5}, range(999)], ids=str)
def test_text_with_failing_draft_equals_the_target(failing: Container[int]) -> None:
    target = TableTarget(1)
    drafter, fallbacks = guarded(Failing(target, failing))
    assert said(LONG, target, drafter) == whole(LONG)
    assert fallbacks
    assert set(fallbacks) <= {"failed", "open"}


def test_target_continues_alone_after_a_draft_failure_until_drafting_resumes() -> None:
    target = TableTarget(1)
    drafter, fallbacks = guarded(Failing(target, {2}))
    steps = list(generate(LONG, target, drafter, VOCAB))
    assert [len(step.ids) for step in steps[:4]] == [4, ALONE_TOKENS, 4, 4]
    assert [step.drafted for step in steps[:4]] == [3, 0, 3, 3]
    assert fallbacks == ["failed"]


def test_rejected_draft_request_is_not_repeated_and_does_not_open_the_breaker() -> None:
    breaker = CircuitBreaker(failures=1)
    target = TableTarget(1)
    refusing = Failing(target, refusing={2})
    drafter, fallbacks = guarded(refusing, breaker)
    assert said(LONG, target, drafter) == whole(LONG)
    assert (refusing.calls, fallbacks, breaker.is_open) == (2, ["refused"], False)


def test_open_breaker_disables_drafting() -> None:
    breaker = CircuitBreaker(failures=2, now=lambda: 0.0)
    target = TableTarget(1)
    failing = Failing(target, range(999))
    drafter, fallbacks = guarded(failing, breaker)
    assert said(LONG, target, drafter) == whole(LONG)
    assert breaker.is_open
    assert failing.calls == 2
    assert fallbacks == ["failed", "failed", *["open"] * (len(fallbacks) - 2)]


@pytest.mark.parametrize("failing", [(), {2, 3}], ids=["healthy", "failing"])
@pytest.mark.parametrize("sampling", SAMPLED[:2], ids=str)
def test_distribution_with_varying_draft_lengths_and_failures_equals_the_target(
    sampling: SamplingOptions, failing
) -> None:
    """The draft length changes, and a draft fails in between."""

    class Turning(AdaptiveDraftLen):
        def choose(self) -> DraftLenChoice:
            self.turn = getattr(self, "turn", 0) + 1
            return DraftLenChoice((2, 0, 1)[self.turn % 3], 0, 0.0)

        def note(self, choice: DraftLenChoice, tokens: int) -> None:
            pass

    class Sometimes(RemoteModelDrafter):
        calls = 0

        def propose(self, *given) -> TokenDraft:
            self.calls += 1
            if self.calls in failing:
                raise DraftFailed("no answer in time")
            return super().propose(*given)

    def drafter_of(model: TableModel, sampling: SamplingOptions) -> TokenDrafter:
        return guarded(Sometimes(model, sampling, draws=True), lengths=Turning(2))[0]

    asked = job(sampling)
    assert distance(distribution_of(asked, drafter_of), distribution_alone(asked)) < 1e-6


def test_chosen_draft_lengths_are_drafted_and_measured() -> None:
    noted: list[tuple[int, int]] = []

    class Given(AdaptiveDraftLen):
        lengths: Iterator[int] = iter([2, 0, 1, 3, 3, 3, 3])

        def choose(self) -> DraftLenChoice:
            return DraftLenChoice(next(self.lengths), 0, 0.0)

        def note(self, choice: DraftLenChoice, tokens: int) -> None:
            noted.append((choice.draft_len, tokens))

    target, draft = TableTarget(1), TableModel(1)
    drafter, _ = guarded(model_drafter(draft, SamplingOptions()), lengths=Given(3))
    asked = job(SamplingOptions(), 3, new_tokens=3 + ALONE_TOKENS + 2 + 4 + 3, endings=ENDLESS)
    steps = list(generate(asked, target, drafter, VOCAB))
    assert [len(step.ids) for step in steps] == [3, ALONE_TOKENS, 2, 4, 3]
    assert noted == [(2, 3), (0, ALONE_TOKENS), (1, 2), (3, 4)]


def test_target_only_tokens_are_not_measured_for_a_rejected_draft_length() -> None:
    noted: list[int] = []

    class Watched(AdaptiveDraftLen):
        def note(self, choice: DraftLenChoice, tokens: int) -> None:
            noted.append(tokens)

    target = TableTarget(1)
    drafter, _ = guarded(Failing(target, refusing={2}), lengths=Watched(3))
    assert said(LONG, target, drafter) == whole(LONG)
    assert len(noted) == 1
    assert noted[0] <= 4, "only one step was drafted"
