# SPDX-License-Identifier: Apache-2.0
"""The warm-up: within all limits, with drafts, and without an effect on later texts."""

from __future__ import annotations

import pytest

from tests._support.tiny import convert, make_llama
from trtspec.core.errors import TrtspecError
from trtspec.engine.engine import Engine, warm_up, warmup_batches
from trtspec.engine.generation.request import EngineRequest, check_request
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration
NGRAM = EngineSettings("ngram", 3, {"max_match": 3, "min_match": 1}, max_batch_size=4, max_seq_len=64, device="cpu")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    root = tmp_path_factory.mktemp("warmup")
    return Engine(convert(make_llama(root / "hf"), root / "target"), None, NGRAM)


@pytest.mark.parametrize("vocab_size", [2, 257])
@pytest.mark.parametrize(("batch", "input_len", "seq_len"), [(1, None, 2), (3, 1, 8), (8, 512, 1024)])
def test_warmup_requests_respect_every_limit(batch: int, input_len: int | None, seq_len: int, vocab_size: int) -> None:
    settings = EngineSettings("ngram", 5, max_batch_size=batch, max_input_len=input_len, max_seq_len=seq_len)
    batches = warmup_batches(settings, vocab_size)
    assert [len(each) for each in batches] == ([1, batch] if batch > 1 else [1])
    for each in batches:
        for request in each:
            check_request(request, settings.limits, vocab_size, has_tokenizer=False)


def test_text_is_the_same_before_and_after_warmup(engine: Engine) -> None:
    request = EngineRequest((5, 6, 7, 5, 6, 7, 5), 12)
    [before] = engine.generate([request])
    warm_up(engine)
    [after] = engine.generate([request])
    assert after.ids == before.ids


def test_warmup_verifies_drafts(engine: Engine) -> None:
    results = [result for batch in warmup_batches(NGRAM, engine.vocab_size) for result in engine.generate(batch)]
    assert all(result.finish_reason == "length" for result in results)
    assert any(result.stats.drafted for result in results)


def test_warmup_failure_is_an_error_with_its_cause(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(engine.speculator, "prefill", fail)
    with pytest.raises(TrtspecError, match="the engine failed: CUDA out of memory"):
        warm_up(engine)
