# SPDX-License-Identifier: Apache-2.0
"""Every method on a CUDA device, in float32: the greedy text is transformers', and the drawn one the CPU's, whichever
rules verify. Half precision runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.methods import eagle3_heads, eagle_heads, heads, recurrent
from tests.tiny import convert, make_llama, reference_model
from tests.torch_engine.lossless import assert_greedy_text, random_prompts
from trtspec.generation.request import Request, Result, SamplingOptions
from trtspec.kernels.verifier import CompiledVerifier
from trtspec.torch_engine.engine import Engine
from trtspec.torch_engine.settings import EngineSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

DEVICE = "cuda"
PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
# name: what is converted with the target, method, draft_len, options
METHODS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "none": ("plain", "none", 0, {}),
    "draft_target": ("plain", "draft_target", 4, {}),
    "draft_target, unsure": ("plain", "draft_target", 4, {"stop_below": 0.2}),
    "ngram": ("plain", "ngram", 6, {}),
    "lookahead": ("plain", "lookahead", 0, {"window": 4, "ngram": 3, "verification": 4}),
    "swift": ("plain", "swift", 3, {"skip": {"attention": [1], "mlp": [1]}}),
    "medusa": ("medusa", "medusa", 0, {"choices": PATHS}),
    "medusa, typical": ("medusa", "medusa", 0, {"choices": PATHS, "lossy": True}),
    "eagle": ("eagle", "eagle", 0, {"choices": PATHS}),
    "eagle, dynamic": ("eagle", "eagle", 0, {"dynamic": True, "top_k": 3, "depth": 3, "nodes": 6}),
    "eagle3": ("eagle3", "eagle3", 4, {}),
    "eagle3, tree": ("eagle3", "eagle3", 3, {"top_k": 3, "nodes": 6}),
    "redrafter": ("redrafter", "redrafter", 4, {"beams": 3}),
}
SAMPLINGS = (SamplingOptions(1.0), SamplingOptions(0.7, top_k=5), SamplingOptions(1.2, top_p=0.8), SamplingOptions())


class Models:
    """A random Llama, converted alone and with each kind of drafting part when it is asked for, and a draft model."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.source = make_llama(root / "hf", scale=0.15, num_hidden_layers=3)
        self.draft = convert(make_llama(root / "hf-draft", seed=1, num_hidden_layers=1), root / "draft")
        self._made: dict[str, Path] = {}

    def target(self, part: str) -> Path:
        """Return the target converted with a part."""
        if part not in self._made:
            self._made[part] = self._convert[part](self._root / part)
        return self._made[part]

    @property
    def _convert(self) -> dict[str, Callable[[Path], Path]]:
        source, root = self.source, self._root
        return {
            "plain": lambda out: convert(source, out),
            "medusa": lambda out: heads.convert_with(
                source, heads.save_heads(root / "heads", heads.random_heads(4)), out, PATHS
            ),
            "eagle": lambda out: eagle_heads.convert_with(
                source, eagle_heads.save_head(root / "eagle-net", eagle_heads.random_head(copies=1.0)), out, {}
            ),
            "eagle3": lambda out: eagle3_heads.convert_with(
                source, eagle3_heads.save_head(eagle3_heads.random_head(), root / "eagle3-net"), out
            ),
            "redrafter": lambda out: recurrent.convert_with(
                source, recurrent.random_drafter().save(root / "recurrent-net"), out
            ),
        }

    def engine(self, name: str, device: str, dtype: str = "float32", kernels: tuple[Path, ...] = ()) -> Engine:
        """Load the engine of a method."""
        part, method, draft_len, options = METHODS[name]
        sizes = {"max_batch_size": 8, "max_seq_len": 128}
        settings = EngineSettings(method, draft_len, options, **sizes, device=device, dtype=dtype, kernels=kernels)
        return Engine.load(self.target(part), self.draft if method == "draft_target" else None, settings)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


def texts(engine: Engine) -> list[Result]:
    """Return what an engine says to requests that sample in different ways, all in one batch; and close it."""
    hows = [SAMPLINGS[number % len(SAMPLINGS)] for number in range(8)]
    try:
        return engine.generate([Request(prompt, 24, how) for prompt, how in zip(random_prompts(8), hows, strict=True)])
    finally:
        engine.close()


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    def test_greedy_text_is_that_of_transformers(self, name: str, models: Models) -> None:
        engine = models.engine(name, DEVICE)
        try:
            assert_greedy_text(engine, reference_model(models.source), 12)
        finally:
            engine.close()

    def test_drawn_text_is_that_of_the_cpu(self, name: str, models: Models) -> None:
        assert texts(models.engine(name, DEVICE)) == texts(models.engine(name, "cpu"))

    def test_compiled_rules_say_the_same(self, name: str, models: Models) -> None:
        library = Path(os.environ.get("TRTSPEC_TEST_LIBRARY", ""))
        if not library.is_file():
            pytest.skip("TRTSPEC_TEST_LIBRARY names no library")
        compiled = models.engine(name, DEVICE, kernels=(library,))
        verifier = compiled.speculator.verifier
        assert texts(compiled) == texts(models.engine(name, DEVICE))
        assert isinstance(verifier, CompiledVerifier)

    def test_bfloat16_runs_every_step(self, name: str, models: Models) -> None:
        assert all(len(result.ids) == 24 for result in texts(models.engine(name, DEVICE, "auto")))
