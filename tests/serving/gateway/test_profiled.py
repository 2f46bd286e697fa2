# SPDX-License-Identifier: Apache-2.0
"""`profile --server` of a real tritonserver with the quickstart, compared with `profile` on the torch engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.gateway.running import RunningGateway
from tests.serving.triton.serving import Served
from trtspec.bench.load.client import ServerAddress
from trtspec.bench.profile import engine_profiler
from trtspec.bench.profile import server_profile as profiling_served
from trtspec.bench.profile.candidates import ProfileRequest, ProgressUI, SearchLimits, ServerSet
from trtspec.bench.profile.document import Profile
from trtspec.cli.progress import build_bars, counter
from trtspec.core.paths import recipes_dir

pytestmark = [pytest.mark.triton, pytest.mark.integration]

ASKED = ProfileRequest(
    recipes_dir() / "quickstart.yaml", ["engine.max_batch_size=2"], Path("quickstart"), None, ["draft_target"],
    SearchLimits(samples=6, max_tokens=24, max_draft_len=5, concurrency=1, seed=0),
)  # fmt: skip
SCREEN = ProgressUI(build_bars, counter)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time few requests, because these tests ignore the times."""
    monkeypatch.setattr("trtspec.bench.profile.server_profile.LEAST", 4)
    monkeypatch.setattr("trtspec.bench.profile.server_profile.MOST_ROUNDS", 1)


@pytest.fixture
def on_engine(workplace: Path) -> Profile:
    """The torch engine's profile of the same prompts."""
    return engine_profiler.run(ASKED, SCREEN)


def test_served_acceptance_equals_the_torch_engine(on_engine: Profile, entry: RunningGateway, served: Served) -> None:
    """Steps, drafted and accepted tokens are equal per text and draft length."""
    by_openai, by_triton = (
        profiling_served.run(ASKED, ServerSet(ServerAddress(url), None, None), SCREEN)
        for url in (entry.url, served.client.where)
    )
    (theirs,) = on_engine.measured
    for found in (by_openai, by_triton):
        (ours,) = found.measured
        assert (found.kinds, found.tokens) == (list(on_engine.kinds), on_engine.tokens)
        assert ours.acceptance.keys() == theirs.acceptance.keys() == {1, 2, 3, 4, 5}
        for length, acceptance in ours.acceptance.items():
            true = theirs.acceptance[length]
            counts = [[(text.steps, text.drafted, text.accepted) for text in side.texts] for side in (acceptance, true)]
            assert counts[0] == counts[1]
            assert acceptance.as_dict() | {"by_position": None} == true.as_dict() | {"by_position": None}
            assert acceptance.depth_rate == pytest.approx(true.depth_rate, abs=1e-9)
    for length, acceptance in by_openai.measured[0].acceptance.items():
        true = theirs.acceptance[length]
        assert [text.reached for text in acceptance.texts] == [text.reached for text in true.texts]
        assert acceptance.by_position == pytest.approx(true.by_position, abs=0.1)
    assert by_openai.server is not None
    assert {*by_openai.server.tokens_per_s} == {(batch, length) for batch in (1, 2) for length in range(6)}
    assert min(by_openai.server.tokens_per_s.values()) > 0
