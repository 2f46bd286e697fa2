# SPDX-License-Identifier: Apache-2.0
"""`bench` of a real tritonserver with the quickstart, by Triton's HTTP API and through the OpenAI gateway."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Run
from tests.serving.gateway.running import RunningGateway
from tests.serving.triton.serving import Served

pytestmark = [pytest.mark.triton, pytest.mark.integration]

ASKED = ("--prompts", "quickstart", "--requests", 6, "--runs", 2, "--max-rounds", 2, "--output-tokens", 24)


def bench(trtspec: Run, url: str, *more: Any) -> dict[str, Any]:
    done = trtspec("bench", url, *ASKED, *more, "--json")
    assert done.code == 0, done.err
    return done.document


def test_triton_and_openai_benchmarks_report_equal_counts(entry: RunningGateway, served: Served, trtspec: Run) -> None:
    """Tokens, draft counts and texts come from the engine and must not depend on the API."""
    by_triton = bench(trtspec, served.client.where, "--concurrency", "1,3")
    by_openai = bench(trtspec, entry.url, "--concurrency", "1,3")
    assert by_triton["arms"]["served"]["api"] == "triton"
    assert by_openai["arms"]["served"]["api"] == "completions"
    assert by_openai["arms"]["baseline"]["extra"] == {"num_draft_tokens": 0}
    assert by_triton["workload"] == by_openai["workload"]
    for ours, theirs in zip(by_triton["points"], by_openai["points"], strict=True):
        for arm in ("served", "baseline"):
            mine, yours = ours["arms"][arm], theirs["arms"][arm]
            for key in ("requests", "failed", "output_tokens", "prompt_tokens", "acceptance_rate"):
                assert mine[key] == yours[key], (arm, key)
            assert (mine["failed"], mine["output_tokens"]) == (0, 2 * 6 * 24)
            assert mine["itl_ms"] is not None
        assert theirs["identical_texts"] == ours["identical_texts"] == {"same": 12, "compared": 12}
        assert theirs["arms"]["served"]["acceptance_rate"] > 0.5
        assert theirs["arms"]["served"]["mean_accepted_len"] > 2
        assert theirs["arms"]["baseline"]["acceptance_rate"] is None
        histogram = theirs["arms"]["served"]["acceptance_histogram"]
        steps, accepted = sum(histogram), sum(place * here for place, here in enumerate(histogram))
        assert theirs["arms"]["served"]["mean_accepted_len"] == pytest.approx(1 + accepted / steps, abs=1e-3)


def test_chat_benchmark_with_poisson_arrivals_reports_goodput(entry: RunningGateway, trtspec: Run) -> None:
    document = bench(trtspec, entry.url, "--api", "chat", "--rate", "20", "--slo", "e2e=60s", "--temperature", "0.8")
    (point,) = document["points"]
    assert point["load"] == {"kind": "poisson", "requests_per_s": 20.0}
    assert point["arms"]["served"]["goodput_share"] == 1.0
    assert point["arms"]["served"]["output_tokens"] == 2 * 6 * 24


def test_random_prompts_have_the_requested_length(entry: RunningGateway, trtspec: Run) -> None:
    asked = ("--requests", 4, "--runs", 1, "--max-rounds", 1, "--input-tokens", 20, "--output-tokens", 4)
    tokenizer = ("--tokenizer", entry.config.tokenizer)
    done = trtspec("bench", entry.url, "--concurrency", 2, *asked, *tokenizer, "--json")
    assert done.code == 0, done.err
    (point,) = done.document["points"]
    assert point["arms"]["served"]["prompt_tokens"] == 4 * 20
    assert "random prompts generate realistic load" in done.err
