# SPDX-License-Identifier: Apache-2.0
"""Every method on a CUDA device, with all verifiers: in float32, greedy text equals transformers' and sampled text the
CPU's. In half precision, greedy text with drafts equals the text without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests._support.tiny import reference_model
from tests.engine.every_method import METHODS, Models
from tests.engine.lossless import assert_greedy_text, random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, EngineResult, SamplingOptions
from trtspec.engine.model.pass_graphs import PassGraphs
from trtspec.kernels.verifier import CompiledVerifier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

DEVICE = "cuda"
SAMPLINGS = (SamplingOptions(1.0), SamplingOptions(0.7, top_k=5), SamplingOptions(1.2, top_p=0.8), SamplingOptions())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def texts(engine: Engine) -> list[EngineResult]:
    """Return an engine's output for a batch of requests with different sampling options; close the engine."""
    hows = [SAMPLINGS[number % len(SAMPLINGS)] for number in range(8)]
    try:
        return engine.generate(
            [EngineRequest(prompt, 24, how) for prompt, how in zip(random_prompts(8), hows, strict=True)]
        )
    finally:
        engine.close()


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    def test_greedy_text_equals_transformers(self, name: str, models: Models) -> None:
        engine = models.engine(name, DEVICE)
        try:
            assert_greedy_text(engine, reference_model(models.source), 12)
        finally:
            engine.close()

    def test_sampled_text_equals_the_cpu(self, name: str, models: Models) -> None:
        assert texts(models.engine(name, DEVICE)) == texts(models.engine(name, "cpu"))

    def test_compiled_rules_give_the_same_text(self, name: str, models: Models) -> None:
        library = Path(os.environ.get("TRTSPEC_TEST_LIBRARY", ""))
        if not library.is_file():
            pytest.skip("TRTSPEC_TEST_LIBRARY names no library")
        compiled = models.engine(name, DEVICE, kernels=(library,))
        verifier = compiled.speculator.verifier
        assert texts(compiled) == texts(models.engine(name, DEVICE))
        assert isinstance(verifier, CompiledVerifier)

    def test_bfloat16_text_is_that_without_drafts(self, name: str, models: Models) -> None:
        """Greedy text, of requests alone and in batches of changing sizes; almost all passes are CUDA graphs."""
        requests = [EngineRequest(prompt, 40 + 9 * row) for row, prompt in enumerate(random_prompts(8))]
        engine, plain = models.engine(name, DEVICE, "auto"), models.engine("none", DEVICE, "auto")
        try:
            expected = [plain.generate([request])[0].ids for request in requests]
            assert [result.ids for result in engine.generate(requests)] == expected
            assert [engine.generate([request])[0].ids for request in requests] == expected
            graphs = engine.speculator.target._pass
            assert isinstance(graphs, PassGraphs)
            assert graphs._is_enabled
            assert graphs._graphs
        finally:
            engine.close()
            plain.close()
