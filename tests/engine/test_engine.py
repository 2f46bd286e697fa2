# SPDX-License-Identifier: Apache-2.0
"""The torch engine against transformers: same text and same distribution, for every drafter and every batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import LLAMA3_ROPE, convert, make_llama, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    choices_along,
    random_prompts,
)
from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Update
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-kv-head": {"num_key_value_heads": 1},
    "all-kv-heads": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head-dim": {"head_dim": 16},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "one-layer": {"num_hidden_layers": 1},
    "gemma2": {"family": "gemma2"},
    "gemma3": {"family": "gemma3"},
    "mistral": {"family": "mistral"},
    "mixtral": {"family": "mixtral"},
    "phi3": {"family": "phi3"},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
LEN = 40


def make_engine(target: Path, draft: Path | None, draft_len: int = 4, **settings: Any) -> Engine:
    method = "draft_target" if draft else "none"
    chosen = {"max_seq_len": 128, "max_batch_size": 4, "device": "cpu"} | settings
    return Engine(target, draft, EngineSettings(method=method, draft_len=draft_len if draft else 0, **chosen))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_equals_transformers_alone_and_in_a_batch(shape: dict[str, Any], tmp_path: Path) -> None:
    """Alone and in a batch, with a mostly wrong draft and with the target as draft."""
    source = make_model(tmp_path / "hf", **{"family": "llama"} | shape)
    target = convert(source, tmp_path / "target")
    draft = convert(make_llama(tmp_path / "hf-draft", seed=1, num_hidden_layers=1), tmp_path / "draft")
    prompts = random_prompts(6)
    model = reference_model(source)
    texts = []
    for drafts_with in (None, draft, target):
        engine = make_engine(target, drafts_with)
        alone = [engine.generate([EngineRequest(prompt, LEN)])[0] for prompt in prompts]
        together = engine.generate([EngineRequest(prompt, LEN) for prompt in prompts])
        engine.close()
        assert together == alone
        texts.append([list(result.ids) for result in alone])
        if drafts_with == target:
            assert all(result.stats.acceptance_rate == 1.0 for result in alone)
    assert texts[0] == texts[1] == texts[2]
    for prompt, text in zip(prompts, texts[0], strict=True):
        assert len(text) == LEN
        assert text == choices_along(model, prompt, text)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    target = convert(make_llama(root / "hf", scale=0.15), root / "target")
    draft = convert(make_llama(root / "hf-draft", seed=1, num_hidden_layers=1), root / "draft")
    return target, draft


@pytest.fixture
def engine(pair: tuple[Path, Path]) -> Iterator[Engine]:
    engine = make_engine(*pair)
    yield engine
    engine.close()


class TestRequestsOfABatch:
    def test_request_draft_len_does_not_change_the_text(self, engine: Engine) -> None:
        prompt = random_prompts(1)[0]
        results = engine.generate([EngineRequest(prompt, LEN, draft_len=length) for length in (None, 0, 1, 2, 99)])
        assert len({result.ids for result in results}) == 1
        assert results[1].stats.drafted == 0
        assert results[1].stats.steps == LEN - 1
        assert results[0].stats == results[4].stats

    def test_sampled_text_depends_on_the_seed_but_not_on_other_requests(self, engine: Engine) -> None:
        prompts = random_prompts(9)
        sampling = [SamplingOptions(1.0, seed=s) if s % 3 else SamplingOptions() for s in range(9)]
        requests = [EngineRequest(prompt, 10 + 3 * s.seed, s) for prompt, s in zip(prompts, sampling, strict=True)]
        together = engine.generate(requests)
        alone = [engine.generate([request])[0] for request in requests]
        assert [result.ids for result in together] == [result.ids for result in alone]
        other_seed = EngineRequest(prompts[1], 13, SamplingOptions(1.0, seed=99))
        assert engine.generate([other_seed])[0].ids != alone[1].ids

    def test_top_k_one_is_greedy(self, engine: Engine) -> None:
        prompt = random_prompts(1)[0]
        one, two = engine.generate(
            [EngineRequest(prompt, LEN), EngineRequest(prompt, LEN, SamplingOptions(0.9, top_k=1, seed=5))]
        )
        assert one.ids == two.ids

    def test_prompt_longer_than_a_step_is_prefilled_in_chunks(self, pair: tuple[Path, Path]) -> None:
        prompts = [tuple(range(n)) for n in (50, 3, 41)]
        whole, chunked = make_engine(*pair), make_engine(*pair, max_num_tokens=16)
        requests = [EngineRequest(prompt, LEN) for prompt in prompts]
        assert [r.ids for r in whole.generate(requests)] == [r.ids for r in chunked.generate(requests)]
        whole.close()
        chunked.close()


class TestEndOfARequest:
    def test_request_ends_before_an_end_id(self, engine: Engine) -> None:
        prompt = random_prompts(1)[0]
        whole = engine.generate([EngineRequest(prompt, LEN)])[0].ids
        end = whole[7]
        result = engine.generate([EngineRequest(prompt, LEN, end_ids=(end, 1000))])[0]
        assert result.ids == whole[: whole.index(end)]
        assert result.finish_reason == "end_id"

    def test_request_ends_after_max_new_tokens(self, engine: Engine) -> None:
        for length in (1, 2, 3):
            result = engine.generate([EngineRequest((1, 2, 3), length)])[0]
            assert (len(result.ids), result.finish_reason) == (length, "length")

    def test_cancellation_ends_one_request_and_does_not_affect_others(self, engine: Engine) -> None:
        prompts = random_prompts(3)
        expected = [result.ids for result in engine.generate([EngineRequest(prompt, 90) for prompt in prompts])]
        texts: list[list[int]] = [[], [], []]
        reasons: list[str | None] = [None] * 3
        done = threading.Barrier(4)
        handles: list[Any] = []
        ready = threading.Event()

        def collect(number: int):
            def on_update(update: Update) -> None:
                ready.wait(30)
                texts[number] += update.new_ids
                if number == 1 and len(texts[1]) > 10:
                    handles[1].cancel()
                if update.finish_reason:
                    reasons[number] = update.finish_reason
                    threading.Thread(target=done.wait, daemon=True).start()

            return on_update

        handles += [engine.submit(EngineRequest(prompt, 90), collect(n)) for n, prompt in enumerate(prompts)]
        ready.set()
        done.wait(timeout=30)
        assert reasons == ["length", "cancelled", "length"]
        assert [tuple(texts[0]), tuple(texts[2])] == [expected[0], expected[2]]
        assert 10 < len(texts[1]) < 20
        assert tuple(texts[1]) == expected[1][: len(texts[1])]

    def test_failing_callback_does_not_affect_other_requests(self, engine: Engine) -> None:
        def fail(update: Update) -> None:
            raise RuntimeError("the caller's bug")

        engine.submit(EngineRequest((1, 2), 50), fail)
        assert len(engine.generate([EngineRequest((1, 2, 3), 20)])[0].ids) == 20

    def test_closing_the_engine_cancels_running_requests(self, pair: tuple[Path, Path]) -> None:
        engine = make_engine(*pair)
        reasons: list[str | None] = []
        begun = threading.Event()

        def on_update(update: Update) -> None:
            reasons.append(update.finish_reason)
            begun.set()

        engine.submit(EngineRequest((1, 2), 100), on_update)
        begun.wait(timeout=10)
        engine.close()
        assert reasons[-1] in ("cancelled", "length")
        with pytest.raises(TrtspecError, match="the engine was closed"):
            engine.submit(EngineRequest((1, 2), 10), on_update)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (EngineRequest((), 5), "the prompt is empty"),
        (EngineRequest((1,), 0), "max_tokens is 0, expected at least 1"),
        (EngineRequest((64,), 5), "the prompt has a token id outside 0..63"),
        (EngineRequest((1,) * 100, 50), "prompt and max_tokens are 150 tokens together, at most 128 fit"),
        (EngineRequest((1,), 5, SamplingOptions(-1.0)), "temperature is -1.0, expected 0 or more"),
        (EngineRequest((1,), 5, SamplingOptions(float("nan"))), "temperature is nan"),
        (EngineRequest((1,), 5, SamplingOptions(1.0, top_k=-2)), "top_k is -2"),
        (EngineRequest((1,), 5, SamplingOptions(1.0, top_p=0.0)), "top_p is 0.0, expected more than 0"),
        (EngineRequest((1,), 5, SamplingOptions(1.0, seed=-1)), "seed is -1"),
        (EngineRequest((1,), 5, draft_len=-1), "the draft length is -1"),
        (EngineRequest((1,), 5, stop=("x",)), "stop texts need the engine to have a tokenizer"),
    ],
)
def test_invalid_request_is_rejected_with_the_reason(engine: Engine, request_: EngineRequest, message: str) -> None:
    with pytest.raises(TrtspecError, match=message.replace("(", r"\(")):
        engine.submit(request_, lambda update: None)


def test_full_queue_rejects_requests(pair: tuple[Path, Path]) -> None:
    engine = make_engine(*pair, max_batch_size=1, max_queue_size=2)
    hold = threading.Event()
    engine.submit(EngineRequest((1, 2), 3), lambda update: hold.wait(30))
    for _ in range(2):
        engine.submit(EngineRequest((1, 2), 3), lambda update: None)
    with pytest.raises(Overloaded, match="the queue is full: 2 requests wait"):
        engine.submit(EngineRequest((1, 2), 3), lambda update: None)
    hold.set()
    engine.close()


def test_mismatched_draft_or_invalid_settings_are_rejected(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = convert(make_llama(tmp_path / "hf", vocab_size=60), tmp_path / "other")
    with pytest.raises(TrtspecError, match="the draft has 60 vocabulary entries, the target 64"):
        make_engine(pair[0], other)
    with pytest.raises(TrtspecError, match="max_seq_len 1000 is more than the target's 256 positions"):
        make_engine(pair[0], None, max_seq_len=1000)
    with pytest.raises(TrtspecError, match=r"unknown speculation method 'draft_traget'.*\n.*did you mean"):
        Engine(pair[0], None, EngineSettings(method="draft_traget"))


# -- the exact distribution of sampled text, through the whole engine --------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Engine, Any]]:
    """Yield an engine with a draft on a vocabulary of three, and transformers' model of its target."""
    sources = [make_model(tmp_path / f"hf{seed}", seed=seed, **DISTRIBUTION_SHAPE) for seed in (0, 1)]
    engine = make_engine(*[convert(source, tmp_path / f"c{seed}") for seed, source in enumerate(sources)], draft_len=2)
    yield engine, reference_model(sources[0])
    engine.close()


@pytest.mark.parametrize(
    "sampling", [SamplingOptions(1.0), SamplingOptions(0.6), SamplingOptions(1.0, top_k=2)], ids=str
)
def test_sampled_text_has_the_targets_distribution(
    sampling: SamplingOptions, small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_targets_distribution(*small, monkeypatch, sampling)


def test_acceptance_rule_without_residual_is_detected(
    small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_wrong_rule_is_seen(*small, monkeypatch)


def test_engine_reports_queue_time_and_occupancy(pair: tuple[Path, Path]) -> None:
    engine = make_engine(*pair, max_batch_size=1)
    updates: list[Update] = []
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def second(update: Update) -> None:
        updates.append(update)
        if update.finish_reason:
            ended.set()

    engine.submit(EngineRequest((1, 2), LEN), lambda update: seen.append(engine.occupancy))
    engine.submit(EngineRequest((3, 4), LEN), second)
    assert ended.wait(60)
    engine.close()
    assert (1, 1) in seen
    waited = {update.queue_s for update in updates}
    assert len(waited) == 1
    assert 0 < waited.pop() < 60
