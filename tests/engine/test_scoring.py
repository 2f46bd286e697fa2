# SPDX-License-Identifier: Apache-2.0
"""Penalties, biases, forbidden words and log probabilities: with every drafter, the text is the target's with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tests._support.tiny import convert, make_llama, make_model, make_tokenizer, reference_model
from tests.engine import lossless
from tests.engine.every_method import METHODS, Models
from tests.engine.lossless import DISTRIBUTION_SHAPE, logits_along, random_prompts
from tests.kernels import reference
from tests.methods import heads
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine import speculator
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, LogitEdits, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

LEN = 24
PROMPTS = random_prompts(4)


class SaidPenalty(LogitsProcessor):
    """OpenAI's presence and frequency penalties for the tokens after the first `skip`."""

    def __init__(self, presence: float, frequency: float, skip: int) -> None:
        self.presence, self.frequency, self.skip = presence, frequency, skip

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, self.skip :], minlength=scores.shape[1])
        return scores - self.presence * (counts > 0) - self.frequency * counts


def processors(edits: LogitEdits, prompt_len: int) -> LogitsProcessorList:
    """Return the transformers processors that correspond to the edits, in their order."""
    found: list[Any] = []
    if edits.bias:
        found.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in edits.bias.items()}))
    if edits.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(edits.repetition_penalty))
    if edits.presence_penalty or edits.frequency_penalty:
        skip = min(edits.prompt_ignore_len, prompt_len)
        found.append(SaidPenalty(edits.presence_penalty, edits.frequency_penalty, skip))
    if edits.bad_words:
        found.append(NoBadWordsLogitsProcessor([list(word) for word in edits.bad_words]))
    return LogitsProcessorList(found)


EDITS = {
    "repetition": LogitEdits(repetition_penalty=1.3),
    "presence": LogitEdits(presence_penalty=1.5),
    "frequency": LogitEdits(frequency_penalty=0.7, prompt_ignore_len=99),
    "bias": LogitEdits(bias={3: 4.0, 8: -50.0, 11: 2.5}),
    "all": LogitEdits(1.1, 0.4, 0.3, 2, 9, ((7,), (1, 2)), {9: 1.0}),
}


class Texts:
    """The texts of transformers with its logits processors."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.plain = {prompt: self.text(prompt, LogitEdits()) for prompt in PROMPTS}
        # words that the model would generate
        said = self.plain[PROMPTS[0]]
        words = ((said[2], said[3]), (said[8],), (said[10], said[11], said[12]))
        self.edits = EDITS | {"bad words": LogitEdits(bad_words=words)}
        self.expected = {
            (name, prompt): self.text(prompt, edits) for name, edits in self.edits.items() for prompt in PROMPTS
        }

    def text(self, prompt: tuple[int, ...], edits: LogitEdits) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LEN, do_sample=False, pad_token_id=0,
            logits_processor=processors(edits, len(prompt)),
        )  # fmt: skip
        return tuple(out[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def texts(models: Models) -> Texts:
    return Texts(reference_model(models.source))


def test_edits_change_the_text(texts: Texts) -> None:
    for name in texts.edits:
        assert any(texts.expected[name, prompt] != texts.plain[prompt] for prompt in PROMPTS), name


@pytest.mark.parametrize("name", [name for name in METHODS if "typical" not in name])
def test_greedy_text_with_edits_equals_transformers(name: str, models: Models, texts: Texts) -> None:
    """All in one batch, together with requests without edits, which are not affected."""
    asked = [*texts.expected, *(("plain", prompt) for prompt in PROMPTS)]
    edits = texts.edits | {"plain": LogitEdits()}
    requests = [EngineRequest(prompt, LEN, edits=edits[how]) for how, prompt in asked]
    engine = models.engine(name, "cpu")
    results = engine.generate(requests)
    engine.close()
    wanted = texts.expected | {("plain", prompt): text for prompt, text in texts.plain.items()}
    assert {pair: result.ids for pair, result in zip(asked, results, strict=True)} == {
        pair: wanted[pair] for pair in asked
    }


def test_drafts_are_accepted_with_edits(models: Models, texts: Texts) -> None:
    """The target drafts for itself without the edits, so drafts are right until an edit changes the choice."""
    engine = Engine(models.target("plain"), models.target("plain"), EngineSettings(
        "draft_target", 4, max_seq_len=128, device="cpu"
    ))  # fmt: skip
    results = engine.generate([EngineRequest(prompt, LEN, edits=texts.edits[how]) for how, prompt in texts.expected])
    engine.close()
    assert [result.ids for result in results] == list(texts.expected.values())
    assert sum(result.stats.accepted for result in results) > 100


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Any]]:
    """Yield an engine with a tokenizer, whose target drafts for itself, and transformers' model of it."""
    root = tmp_path_factory.mktemp("words")
    tokenizer = make_tokenizer(root / "tokenizer")
    source = make_llama(root / "hf", vocab_size=Tokenizer(tokenizer).vocab_size)
    target = convert(source, root / "target")
    engine = Engine(target, target, EngineSettings("draft_target", 4, max_seq_len=128, device="cpu"), tokenizer)
    yield engine, reference_model(source)
    engine.close()


@pytest.mark.parametrize("least", [0, 1, 3, 5, 12])
def test_end_id_is_suppressed_before_min_tokens(least: int, worded: tuple[Engine, Any]) -> None:
    engine, model = worded
    (plain,) = engine.generate([EngineRequest((1, 2), 20)])
    ids, end = torch.tensor([[1, 2]]), plain.ids[3]
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, min_new_tokens=least or None, do_sample=False,
        eos_token_id=end, pad_token_id=0,
    )[0, 2:].tolist()  # fmt: skip
    edits = LogitEdits(min_tokens=least)
    (result,) = engine.generate([EngineRequest((1, 2), 20, end_ids=(end,), edits=edits)])
    assert list(result.ids) == (expected[:-1] if expected[-1] == end else expected)


@pytest.mark.parametrize("end_id", [1_048_576, 2**31 - 1, -1])
def test_min_tokens_with_an_end_id_outside_the_vocabulary_masks_nothing(
    end_id: int, worded: tuple[Engine, Any]
) -> None:
    engine, _ = worded
    (plain,) = engine.generate([EngineRequest((1, 2), 12)])
    (result,) = engine.generate([EngineRequest((1, 2), 12, end_ids=(end_id,), edits=LogitEdits(min_tokens=12))])
    assert result.ids == plain.ids


def test_stop_text_is_ignored_before_min_tokens(worded: tuple[Engine, Any]) -> None:
    engine = worded[0]
    (plain,) = engine.generate([EngineRequest((1, 2), 20)])
    assert engine.tokenizer is not None
    stop = engine.tokenizer.decode([plain.ids[2]])

    def length(least: int) -> int:
        (result,) = engine.generate([EngineRequest((1, 2), 20, stop=(stop,), edits=LogitEdits(min_tokens=least))])
        assert result.ids == plain.ids[: len(result.ids)]
        return len(result.ids)

    assert [length(least) for least in (0, 1, 3)] == [3, 3, 3]
    again = next((n for n in range(4, 20) if engine.tokenizer.decode([plain.ids[n - 1]]) == stop), 20)
    assert length(4) == again


def test_request_that_forbids_all_tokens_still_generates_text(models: Models) -> None:
    """A request that forbids all ids gets some text; the engine and other requests continue."""
    engine = models.engine("draft_target", "cpu")
    everything = LogitEdits(bad_words=tuple((token,) for token in range(64)))
    for sampling in (SamplingOptions(), SamplingOptions(0.7, seed=3)):
        bad, good = engine.generate([EngineRequest((1, 2), 5, sampling, edits=everything), EngineRequest((1, 2), 5)])
        assert len(bad.ids) == len(good.ids) == 5
    engine.close()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (LogitEdits(repetition_penalty=0.0), "repetition_penalty is 0.0, expected more than 0"),
        (LogitEdits(repetition_penalty=float("nan")), "repetition_penalty is nan"),
        (LogitEdits(presence_penalty=float("inf")), "presence_penalty is inf, expected -10000 to 10000"),
        (LogitEdits(frequency_penalty=1e5), "frequency_penalty is 100000.0"),
        (LogitEdits(prompt_ignore_len=-1), "prompt_ignore_length is -1, expected 0 or more"),
        (LogitEdits(min_tokens=-1), "min_tokens is -1, expected 0 or more"),
        (LogitEdits(bad_words=((),)), "a bad word is empty"),
        (LogitEdits(bad_words=((64,),)), r"a bad word or a bias has a token id outside 0\.\.63"),
        (LogitEdits(bias={-1: 1.0}), r"a bad word or a bias has a token id outside 0\.\.63"),
        (LogitEdits(bias={1: float("nan")}), "a bias is not within -10000 and 10000"),
    ],
)
def test_invalid_edit_is_rejected_with_the_reason(edits: LogitEdits, message: str, models: Models) -> None:
    engine = models.engine("none", "cpu")
    with pytest.raises(TrtspecError, match=message):
        engine.submit(EngineRequest((1,), 4, edits=edits), print)
    with pytest.raises(TrtspecError, match="num_top_logprobs is 21, expected 0 to 20"):
        engine.submit(EngineRequest((1,), 4, return_log_probs=True, num_top_log_probs=21), print)
    engine.close()


# -- the exact distribution of sampled text ----------------------------------------------------------------------------

SAMPLED = LogitEdits(1.4, 0.3, 0.5, 1, bad_words=((0, 1),), bias={2: 0.4})
PROMPT = (1, 2, 0)
MakeEngine = Callable[[Path, Path], Engine]


def chain(source: Path, root: Path) -> Engine:
    draft = convert(make_model(root / "hf-draft", seed=1, **DISTRIBUTION_SHAPE), root / "draft")
    settings = EngineSettings("draft_target", 2, max_seq_len=32, device="cpu")
    return Engine(convert(source, root / "target"), draft, settings)


def lookup(source: Path, root: Path) -> Engine:
    settings = EngineSettings("ngram", 3, {"min_match": 1}, max_seq_len=32, device="cpu")
    return Engine(convert(source, root / "target"), None, settings)


def tree(source: Path, root: Path) -> Engine:
    paths = [[0], [1], [0, 0], [0, 2], [1, 1]]
    saved = heads.save_heads(root / "heads", heads.random_heads(2, hidden=DISTRIBUTION_SHAPE["hidden_size"], vocab=3))
    target = heads.convert_with(source, saved, root / "target", paths)
    return Engine(target, None, EngineSettings("medusa", 0, {"choices": paths}, max_seq_len=32, device="cpu"))


@pytest.fixture(params=[chain, lookup, tree])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, Any]]:
    source = make_model(tmp_path / "hf", **DISTRIBUTION_SHAPE)
    engine = request.param(source, tmp_path)
    yield engine, reference_model(source)
    engine.close()


def edited_distribution(model: Any, edits: LogitEdits, sampling: SamplingOptions, new_tokens: int) -> np.ndarray:
    """Return the distribution of transformers' model with transformers' processors."""
    vocab, how = model.config.vocab_size, processors(edits, len(PROMPT))
    distribution = np.zeros((vocab,) * new_tokens)

    def add(text: tuple[int, ...], weight: float) -> None:
        if len(text) == new_tokens:
            distribution[text] = weight
            return
        ids = torch.tensor([[*PROMPT, *text]])
        with torch.inference_mode():
            logits = how(ids, model(ids).logits[:, -1])[0].double().numpy()
        row = reference.sampling_probs(logits, sampling.temperature, sampling.top_k, sampling.top_p)
        for token in range(vocab):
            if row[token] > 0:
                add((*text, token), weight * float(row[token]))

    add((), 1.0)
    return distribution


def assert_edited_distribution(engine: Engine, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingOptions(0.8)
    ours = lossless.engine_distribution(engine, monkeypatch, EngineRequest(PROMPT, 4, sampling, edits=SAMPLED))
    np.testing.assert_allclose(ours, edited_distribution(model, SAMPLED, sampling, 4), atol=2e-5)


def test_sampled_text_has_the_targets_distribution(small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_edited_distribution(*small, monkeypatch)


def blind_to_drafts(change: Callable[..., None]) -> Callable[..., None]:
    """Return a wrong edit of rows, which ignores the tokens drafted before a node."""

    def wrong(logits: torch.Tensor, running: Any, tokens: torch.Tensor, sees: np.ndarray) -> None:
        change(logits, running, tokens, np.zeros_like(sees))

    return wrong


def without_paths(change: Callable[..., None]) -> Callable[..., None]:
    """Return a wrong edit of rows, which uses all drafted tokens before a node, including other branches."""

    def wrong(logits: torch.Tensor, running: Any, tokens: torch.Tensor, sees: np.ndarray) -> None:
        change(logits, running, tokens, np.tri(len(sees), dtype=bool) & (np.arange(len(sees)) > 0))

    return wrong


@pytest.mark.parametrize("small", [chain, lookup, tree], indirect=True)
def test_edits_that_ignore_drafts_are_detected(small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculator, "_edit_row", blind_to_drafts(speculator._edit_row))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_edited_distribution(*small, monkeypatch)


@pytest.mark.parametrize("small", [tree], indirect=True)
def test_edits_that_mix_branches_are_detected(small: tuple[Engine, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculator, "_edit_row", without_paths(speculator._edit_row))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_edited_distribution(*small, monkeypatch)


# -- log probabilities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "draft_target", "medusa", "eagle, dynamic"])
def test_log_probabilities_come_from_the_unedited_logits(name: str, models: Models, texts: Texts) -> None:
    """They do not depend on logit edits or on the rest of the batch."""
    engine = models.engine(name, "cpu")
    hows = [SamplingOptions(), SamplingOptions(0.7, top_k=5, seed=3)]
    asked = [
        EngineRequest(prompt, LEN, how, return_log_probs=True, num_top_log_probs=count, edits=edits)
        for prompt in PROMPTS[:2] for how in hows for count, edits in ((0, LogitEdits()), (3, EDITS["all"]))
    ]  # fmt: skip
    *results, silent = engine.generate([*asked, EngineRequest(PROMPTS[0], LEN)])
    engine.close()
    assert silent.scores is None
    for request, result in zip(asked, results, strict=True):
        logits = torch.from_numpy(logits_along(texts.model, request.prompt_ids, result.ids))
        expected = torch.log_softmax(logits, -1)
        scores = result.scores
        assert scores is not None
        assert scores.logits is None
        np.testing.assert_allclose(scores.log_probs, expected[range(LEN), list(result.ids)], atol=1e-4)
        best = expected.topk(request.num_top_log_probs)
        assert scores.top_ids.tolist() == best.indices.tolist()
        np.testing.assert_allclose(scores.top_log_probs, best.values, atol=1e-4)


def test_top_log_probs_are_limited_to_the_vocabulary_size(tmp_path: Path) -> None:
    target = convert(make_model(tmp_path / "hf", **DISTRIBUTION_SHAPE), tmp_path / "target")
    engine = Engine(target, None, EngineSettings(max_seq_len=32, device="cpu"))
    (result,) = engine.generate([EngineRequest((1,), 2, return_log_probs=True, num_top_log_probs=20)])
    engine.close()
    assert result.scores.top_ids.shape == (2, 3)  # type: ignore[union-attr]


def test_edits_apply_to_external_drafts(models: Models, texts: Texts) -> None:
    """The edits of each draft token depend on the tokens before it."""
    engine = models.engine("none", "cpu")
    for how, prompt in texts.expected:
        text = texts.expected[how, prompt]
        asked = EngineRequest(prompt, LEN, edits=texts.edits[how], draft_ids=text[:6])
        for request in (asked, replace(asked, draft_ids=(*text[:3], (text[3] + 1) % 64))):
            (result,) = engine.generate([request])
            assert result.ids == text[: len(result.ids)]
            assert result.stats.accepted == (6 if request is asked else 3)
    engine.close()


def test_logits_of_requests_without_edits_are_passed_through(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = models.engine("draft_target", "cpu")
    monkeypatch.setattr(speculator, "_edit_row", None)
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    original = speculator.apply_edits
    monkeypatch.setattr(
        speculator, "apply_edits", lambda logits, *rest: given.append((logits, original(logits, *rest))) or given[-1][1]
    )
    engine.generate([EngineRequest((1, 2), 6)])
    engine.close()
    assert given
    assert all(before is after for before, after in given)
