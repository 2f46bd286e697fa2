# SPDX-License-Identifier: Apache-2.0
"""A draft model of another vocabulary: it processes the text in its own tokens, and drafts tokens that both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._support.tiny import SHAPE, convert, make_llama, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    assert_greedy_text,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    random_prompts,
)
from trtspec.checkpoints.translation import MAX_LENGTH_RATIO, MAX_SPELLING, VocabMapping
from trtspec.core.errors import TrtspecError
from trtspec.engine.drafting.base import TranslatedVocabulary
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

VOCAB, DRAFT_LEN = SHAPE["vocab_size"], 4
# for a target of three tokens; the second one is two tokens of the draft
OF_THREE = VocabMapping([0, 2], [3, 1], [[3], [0, 2], [1]])


def load(target: Path, draft: Path, draft_len: int = DRAFT_LEN, **how: Any) -> Engine:
    settings = EngineSettings(
        "draft_target", draft_len, **({"max_seq_len": 128, "max_batch_size": 8} | how), device="cpu"
    )
    return Engine(target, draft, settings)


def translated(draft: Path, translation: VocabMapping) -> Path:
    translation.write(draft)
    return draft


class OfThree:
    """A target of three tokens whose texts can be enumerated, and a draft of four tokens with two in common."""

    def __init__(self, root: Path) -> None:
        sources = [make_model(root / f"hf{seed}", seed=seed, **DISTRIBUTION_SHAPE | {"vocab_size": 3 + seed})
                   for seed in (0, 1)]  # fmt: skip
        self.model = reference_model(sources[0])
        self.target, draft = (convert(each, root / f"c{seed}") for seed, each in enumerate(sources))
        self.draft = translated(draft, OF_THREE)

    def engine(self, draft_len: int = 2, **how: Any) -> Engine:
        return load(self.target, self.draft, draft_len, max_batch_size=1, max_seq_len=64, **how)


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> OfThree:
    return OfThree(tmp_path_factory.mktemp("three"))


WAYS: dict[str, dict[str, Any]] = {
    "standard": {},
    "as a block": {"verify": "block"},
    "by confidence": {"confidence": 0.3},
    "its tokens alone": {"options": {"use_draft_logits": False}},
}


@pytest.mark.parametrize("way", WAYS)
def test_sampled_text_has_the_targets_distribution(
    way: str, of_three: OfThree, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = of_three.engine(**WAYS[way])
    assert_targets_distribution(engine, of_three.model, monkeypatch, SamplingOptions(1.0))
    engine.close()


def test_truncated_sampling_has_the_targets_distribution(of_three: OfThree, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = of_three.engine()
    assert_targets_distribution(engine, of_three.model, monkeypatch, SamplingOptions(0.8, top_k=2), 3)
    engine.close()


def test_acceptance_rule_without_residual_is_detected(of_three: OfThree, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = of_three.engine()
    assert_wrong_rule_is_seen(engine, of_three.model, monkeypatch)
    engine.close()


def test_draft_probabilities_over_unshared_tokens_are_detected(
    of_three: OfThree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong rule samples from the shared tokens, but verifies with the distribution over all tokens."""
    engine = of_three.engine()
    vocabulary = engine.speculator.drafter._reading
    monkeypatch.setattr(vocabulary, "spread", lambda probs: type(vocabulary).spread(vocabulary, probs * 0.6))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_targets_distribution(engine, of_three.model, monkeypatch, SamplingOptions(1.0), 3)
    engine.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("source") / "hf", scale=0.15)


@pytest.fixture(scope="module")
def target(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(source, tmp_path_factory.mktemp("target"))


def reordered(source: Path, root: Path, order: Tensor) -> Path:
    """Save a model whose token number i is the source's number order[i]."""
    model = reference_model(source)
    with torch.no_grad():
        for weight in (model.get_input_embeddings().weight, model.lm_head.weight):
            weight.copy_(weight[order].clone())
    model.save_pretrained(root)
    return root


def test_target_with_permuted_vocabulary_as_draft_is_always_accepted(
    source: Path, target: Path, tmp_path: Path
) -> None:
    """All drafts are accepted, greedy or sampled, while other rows enter and leave."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))
    draft = convert(reordered(source, tmp_path / "hf", order), tmp_path / "draft")
    ids = order.argsort().tolist()
    engine = load(target, translated(draft, VocabMapping([*range(VOCAB)], ids, [[token] for token in ids])))
    stats = assert_greedy_text(engine, reference_model(source))
    prompts = random_prompts(8)
    requests = [EngineRequest(prompt, 24 + 3 * at, SamplingOptions(1.0, seed=at)) for at, prompt in enumerate(prompts)]
    stats += [result.stats for result in engine.generate(requests)]
    engine.close()
    assert all(one.accepted == one.drafted > 0 for one in stats)


def random_translation(seed: int, shared: int, size: int) -> VocabMapping:
    """Share some of a target's tokens with a draft; each other token maps to one to LONGEST draft tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:shared].sort().values.tolist()
    theirs = torch.randperm(size, generator=generator)[:shared].tolist()
    lens = torch.randint(1, MAX_SPELLING + 1, (VOCAB,), generator=generator).tolist()
    spellings = [torch.randint(0, size, (length,), generator=generator).tolist() for length in lens]
    for token, drafted in zip(ids, theirs, strict=True):
        spellings[token] = [drafted]
    return VocabMapping(ids, theirs, spellings)


def test_greedy_text_and_drafts_equal_transformers(source: Path, target: Path, tmp_path: Path) -> None:
    """The oracle is the draft run by transformers over the text in the draft's tokens, after every step of a batch."""
    draft_source = make_llama(tmp_path / "hf", seed=3, vocab_size=40, num_hidden_layers=1)
    translation = random_translation(1, shared=30, size=40)
    engine = load(target, translated(convert(draft_source, tmp_path / "draft"), translation), max_seq_len=256)
    drafter, model, asked = engine.speculator.drafter, reference_model(draft_source), 0
    propose = drafter.propose

    def held_against_transformers(texts: Any, depth: int, sampling: Any) -> Any:
        nonlocal asked
        draft = propose(texts, depth, sampling)
        for text, row, length in zip(texts, draft.tokens.tolist(), draft.lens, strict=True):
            spelled = [own for token in text for own in translation.spellings[token]]
            assert row[:length] == chain_of(model, translation, spelled, depth)[:length]
            asked += length
        return draft

    drafter.propose = held_against_transformers
    assert_greedy_text(engine, reference_model(source), 8)
    engine.close()
    assert asked > 200


def chain_of(model: Any, translation: VocabMapping, spelled: list[int], depth: int) -> list[int]:
    """Return the greedy chain of transformers' model over the shared tokens, as the target's ids."""
    said = []
    for _ in range(depth):
        with torch.inference_mode():
            logits = model(torch.tensor([spelled])).logits[0, -1]
        best = int(logits[translation.draft_ids].argmax())
        said.append(translation.target_ids[best])
        spelled = [*spelled, translation.draft_ids[best]]
    return said


def test_text_too_long_for_the_draft_continues_without_drafts(source: Path, target: Path, tmp_path: Path) -> None:
    """The long text needs more draft tokens than fit; a row with a short text continues to draft."""
    own = [token for token in range(VOCAB) if token % 2]
    spellings = [[token] if token % 2 else [1] * MAX_SPELLING for token in range(VOCAB)]
    draft = translated(convert(source, tmp_path / "draft"), VocabMapping(own, own, spellings))
    engine = load(target, draft, max_seq_len=40)
    long, short = EngineRequest((2,) * 30, 10), EngineRequest((3, 5, 7), 30)
    assert len(long.prompt_ids) * MAX_SPELLING > MAX_LENGTH_RATIO * 40
    alone = [engine.generate([request])[0] for request in (long, short)]
    assert engine.generate([long, short]) == alone
    engine.close()
    assert alone[0].stats.drafted == 0 < alone[1].stats.drafted
    plain = Engine(target, None, EngineSettings(max_seq_len=40, device="cpu"))
    assert [result.ids for result in plain.generate([long, short])] == [result.ids for result in alone]
    plain.close()


def test_draft_processes_tokens_generated_during_a_pause_later(source: Path, target: Path, tmp_path: Path) -> None:
    """The target itself drafts, but not while two requests run; all later drafts are accepted."""
    same = [*range(VOCAB)]
    own = translated(convert(source, tmp_path / "own"), VocabMapping(same, same, [[token] for token in same]))
    for draft in (target, own):
        engine = load(target, draft, schedule=((1, DRAFT_LEN),))
        results = engine.generate([EngineRequest((1, 2, 3), 40), EngineRequest((4, 5), 12)])
        engine.close()
        assert results[0].stats.drafted > 10
        assert results[0].stats.accepted == results[0].stats.drafted


def test_vocabulary_mapping_for_another_target_is_rejected(target: Path, source: Path, tmp_path: Path) -> None:
    draft = translated(convert(source, tmp_path / "draft"), OF_THREE)
    with pytest.raises(TrtspecError, match="does not match this target and draft"):
        load(target, draft)


def test_shared_tokens_map_to_single_draft_tokens() -> None:
    reading = TranslatedVocabulary(OF_THREE, torch.device("cpu"))
    assert reading.spell([0, 1, 2]) == [3, 0, 2, 1]
    assert reading.to_draft(torch.tensor([0, 2])).tolist() == [3, 1]
    assert reading.shared(torch.tensor([[0.0, 1.0, 2.0, 3.0]])).tolist() == [[3.0, 1.0]]
