# SPDX-License-Identifier: Apache-2.0
"""Metrics of requests, rounds and arms, compared with numpy on known schedules."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from trtspec.bench.load.arrivals import Closed, Poisson
from trtspec.bench.load.client import BASELINE, SERVED, Counters, parse_counters
from trtspec.bench.load.document import (
    category_speedups,
    find_crossover,
    find_outliers,
    summarize_arm,
    summarize_values,
)
from trtspec.bench.load.rounds import Round
from trtspec.bench.load.sample import RequestSample, Slo, parse_slo
from trtspec.bench.load.sweep import Point, samples_file, summarize_noise, write_samples
from trtspec.core.errors import TrtspecError


def sample(due_s: float, chunks_s: list[float], tokens: int | None = None, **more: object) -> RequestSample:
    made = len(chunks_s) if tokens is None else tokens
    return RequestSample("p", str(more.pop("kind", "")), due_s, due_s, tuple(chunks_s), 7, made, **more)  # type: ignore[arg-type]


def drawn(seed: int, requests: int) -> list[RequestSample]:
    """Return requests with chunks at random times."""
    draws = np.random.default_rng(seed)
    gaps = [draws.exponential(0.01, size=draws.integers(2, 30)) for _ in range(requests)]
    return [sample(0.1 * number, list(np.cumsum(each) + 0.05)) for number, each in enumerate(gaps)]


def test_request_sample_computes_ttft_tpot_itl_and_e2e() -> None:
    """5 tokens in 3 chunks, the first after 200 ms, the last after 1 s: four tokens took 800 ms."""
    one = sample(3.0, [0.2, 0.6, 1.0], tokens=5)
    assert one.ttft_ms == pytest.approx(200)
    assert one.e2e_ms == pytest.approx(1000)
    assert one.tpot_ms == pytest.approx(800 / 4)
    assert one.itl_ms == pytest.approx([400, 400])
    assert one.tokens_per_s == pytest.approx(5)
    assert sample(0.0, [0.2]).tpot_ms is None


def test_closed_loop_throughput_counts_only_the_steady_state() -> None:
    """Two slots generate one token per second each until the last request starts after 4 s and runs alone for 20 s."""
    samples = [sample(0.0, [1, 2, 3, 4.5]), sample(0.0, [1, 2]), sample(2.0, [1, 2]), sample(4.0, [2, 11, 20])]
    closed, open_loop = Round(samples, places=2), Round(samples)
    assert (closed.steady_state_s, closed.seconds) == (4.0, 24.0)
    assert closed.steady_state_tokens == pytest.approx(4 * (4 - 1) / 3.5 + 2 + 2)
    assert closed.output_tokens_per_s == pytest.approx(closed.steady_state_tokens / 4)
    assert open_loop.output_tokens_per_s == pytest.approx(11 / 24)
    assert summarize_arm([closed, closed], Counters(), None)["output_tokens_per_s"] == round(
        closed.output_tokens_per_s, 3
    )
    assert Round(samples, places=4).output_tokens_per_s == pytest.approx(11 / 24)


def test_closed_loop_without_steady_state_tokens_counts_the_whole_round() -> None:
    """The first request of a slot fails immediately, and the last request replaces it."""
    samples = [sample(0.0, [], error="refused"), sample(0.0, [1, 2]), sample(0.01, [1, 2])]
    assert Round(samples, places=2).steady_state_s == pytest.approx(2.01)
    assert Round(samples, places=2).output_tokens_per_s == pytest.approx(4 / 2.01)


def test_tokens_within_interpolates_between_first_and_last_chunk() -> None:
    one, whole = sample(0.0, [1.0, 2.0, 3.0], tokens=8), sample(0.0, [4.0], tokens=8)
    assert [one.tokens_within(seconds) for seconds in (-1.0, 1.0, 1.5, 3.0, 9.0)] == [0, 0, 2, 8, 8]
    assert [whole.tokens_within(seconds) for seconds in (0.0, 1.0, 4.0)] == [0, 2, 8]
    assert [sample(0.0, [1.0, 1.0], tokens=8).tokens_within(seconds) for seconds in (0.5, 1.0)] == [0, 8]


def test_arm_percentiles_over_all_rounds_match_numpy() -> None:
    rounds = [Round(drawn(seed, 40)) for seed in range(3)]
    found = summarize_arm(rounds, Counters(), None)
    every = [each for one in rounds for each in one.samples]
    for name, values in (
        ("ttft_ms", [1000 * each.chunks_s[0] for each in every]),
        ("e2e_ms", [1000 * each.chunks_s[-1] for each in every]),
        ("tpot_ms", [1000 * (each.chunks_s[-1] - each.chunks_s[0]) / (len(each.chunks_s) - 1) for each in every]),
        ("itl_ms", list(np.concatenate([1000 * np.diff(each.chunks_s) for each in every]))),
    ):
        spread = found[name]
        for share in (50, 90, 95, 99):
            assert spread[f"p{share}"] == pytest.approx(np.percentile(values, share), abs=1e-3)
        assert (spread["mean"], spread["max"]) == pytest.approx((np.mean(values), np.max(values)), abs=1e-3)
    seconds = sum(max(each.due_s + each.chunks_s[-1] for each in one.samples) for one in rounds)
    tokens = sum(len(each.chunks_s) for each in every)
    assert found["output_tokens_per_s"] == pytest.approx(tokens / seconds, rel=1e-4)
    assert found["requests_per_s"] == pytest.approx(120 / seconds, rel=1e-3)


def test_failed_requests_are_counted_and_excluded_from_latencies() -> None:
    good, bad = sample(0.0, [0.1, 0.2]), RequestSample("p", "", 0.0, 0.0, error="broke off")
    found = summarize_arm([Round([good, bad, bad])], Counters(), Slo(ttft_ms=1000))
    assert (found["requests"], found["failed"], found["errors"]) == (1, 2, {"broke off": 2})
    assert found["goodput_share"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["ttft_ms"]["max"] == pytest.approx(100)


def test_goodput_counts_requests_within_every_slo_limit() -> None:
    quick, slow = sample(0.0, [0.1, 0.12]), sample(0.0, [0.1, 0.2])
    assert Slo(ttft_ms=100, tpot_ms=30).holds(quick)
    assert not Slo(ttft_ms=100, tpot_ms=30).holds(slow)
    assert not Slo(ttft_ms=99).holds(quick)
    assert Slo(e2e_ms=120).holds(quick)
    assert not Slo(e2e_ms=120).holds(slow)
    found = summarize_arm([Round([quick, slow])], Counters(), Slo(tpot_ms=30))
    assert (found["goodput_share"], found["goodput_requests_per_s"]) == (0.5, pytest.approx(1 / 0.2))


def test_slo_is_parsed_and_invalid_limits_are_rejected() -> None:
    assert parse_slo("ttft=200ms, tpot=30ms") == Slo(200, 30)
    assert parse_slo("e2e=1.5s") == Slo(e2e_ms=1500)
    for wrong in ("ttft=200", "ttft", "", "x=1ms", "ttft=1ms,ttft=2ms", "ttft=-1ms"):
        with pytest.raises(TrtspecError, match="is not a valid limit"):
            parse_slo(wrong)


def test_acceptance_is_weighted_by_tokens_over_requests() -> None:
    """8 + 6 of 10 + 30 drafted tokens were accepted in 4 + 10 steps."""
    several = [
        sample(0.0, [0.1], drafted=10, accepted=8, steps=4, histogram=(0, 0, 4), kind="code"),
        sample(0.0, [0.1], drafted=30, accepted=6, steps=10, histogram=(4, 6), kind="chat"),
        sample(0.0, [0.1], kind="chat"),
    ]
    found = summarize_arm([Round(several)], Counters(1, 1, 1), None)
    assert (found["acceptance_rate"], found["mean_accepted_len"]) == (0.35, 2.0)
    assert (found["acceptance_histogram"], found["drafts_told_by"]) == ([4, 6, 4], "answers")
    assert found["by_kind"]["code"]["mean_accepted_len"] == 3.0
    assert found["by_kind"]["chat"]["mean_accepted_len"] == 1.6


def test_category_speedups_are_geometric_means_without_failed_requests() -> None:
    """Tokens of code are 2 and 8 times as fast: 4 as geometric mean. A failed request does not count."""
    served = [sample(0.0, [0.1, 0.2], kind="code"), sample(0.0, [0.1, 0.15], kind="code"), sample(0.0, [0.1, 0.3])]
    alone = [sample(0.0, [0.1, 0.3], kind="code"), sample(0.0, [0.1, 0.5], kind="code"), sample(0.0, [0.1, 0.2])]
    broken = RequestSample("p", "code", 0.0, 0.0, error="broke off")
    found = category_speedups([(Round([*served, broken]), Round([*alone, broken]))] * 2)
    assert {kind: (each["ratio"], each["low"], each["rounds"]) for kind, each in found.items()} == {
        "code": (4.0, 4.0, 2),
        "-": (0.5, 0.5, 2),
    }
    assert category_speedups([(Round(served[:2]), Round(alone[:2]))]) == {}


def test_acceptance_comes_from_counters_when_responses_lack_drafts() -> None:
    text = (
        "# TYPE vllm:spec_decode_num_drafts counter\n"
        'vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n'
        'vllm:spec_decode_num_drafts_total{engine="1"} 30.0\n'
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 1.2e+02\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 60.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 33.0\n'
    )
    counted = parse_counters(text.encode())
    assert counted == Counters(40, 120, 60)
    assert counted.since(Counters(20, 20, 10)) == Counters(20, 100, 50)
    assert counted.since(Counters(50, 20, 10)) == Counters()  # the server was restarted
    found = summarize_arm([Round([sample(0.0, [0.1])])], counted, None)
    assert (found["acceptance_rate"], found["mean_accepted_len"], found["drafts_told_by"]) == (0.5, 2.5, "counters")
    assert parse_counters(b"vllm:spec_decode_num_drafts_total 1\n") is None
    none = summarize_arm([Round([sample(0.0, [0.1])])], Counters(), None)
    assert (none["acceptance_rate"], none["mean_accepted_len"], none["drafts_told_by"]) == (None, None, "")


def test_arrivals_are_poisson() -> None:
    """Gaps have the mean and deviation of an exponential distribution, and equal seeds give equal times."""
    load = Poisson(4.0)
    times = np.array(load.arrivals(20_000, 1))
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.mean(gaps > 0.25) == pytest.approx(math.exp(-1), abs=0.01)
    assert load.arrivals(50, 7) == load.arrivals(50, 7) != load.arrivals(50, 8)


def test_loads_have_a_dict_a_name_and_a_round_size() -> None:
    assert Closed(8).as_dict() == {"kind": "closed", "concurrency": 8}
    assert Poisson(0.5).as_dict() == {"kind": "poisson", "requests_per_s": 0.5}
    assert (str(Closed(8)), str(Poisson(0.5))) == ("concurrency 8", "0.5 requests/s")
    assert (Closed(4).requests_a_round, Closed(64).requests_a_round) == (16, 192)


def test_outlier_round_is_found() -> None:
    assert find_outliers([2.0, 2.05, 1.95, 2.02, 1.1, 1.98]) == [4]
    assert find_outliers([2.0, 2.05, 1.95, 2.02, 2.1, 1.98]) == []
    assert find_outliers([1.0, 5.0]) == []


def test_noise_spread_is_the_interquartile_range_over_the_median() -> None:
    quiet, loud = summarize_noise([10.0] * 9), summarize_noise([10.0, 11, 12, 13, 14, 15, 16])
    assert (quiet["median_work_ms"], quiet["spread"]) == (10.0, 0.0)
    low, high = np.percentile([10, 11, 12, 13, 14, 15, 16], [25, 75], method="weibull")
    assert loud["spread"] == pytest.approx((high - low) / 13, abs=1e-4)


def test_summary_of_no_values_is_none() -> None:
    assert summarize_values([]) is None


def test_acceptance_rate_is_zero_when_no_draft_token_is_accepted() -> None:
    found = summarize_arm([Round([sample(0.0, [0.1])])], Counters(10, 40, 0), None)
    assert (found["acceptance_rate"], found["mean_accepted_len"]) == (0.0, 1.0)


def compared(served: Sequence[RequestSample], alone: Sequence[RequestSample]) -> Point:
    return Point(Closed(1), 2, {SERVED: [Round(served)] * 3, BASELINE: [Round(alone)] * 3})


def test_arms_with_failed_requests_are_not_compared() -> None:
    """Half of the requests complete sooner than all of them, which is not a speed-up."""
    quick, slow, broken = sample(0.0, [0.1]), sample(0.0, [0.2]), RequestSample("p", "", 0.0, 0.0, error="503")
    assert compared([quick, quick], [slow, slow]).speedup
    failing = compared([quick, broken], [slow, slow])
    assert (failing.speedups(), failing.speedup) == ([], None)
    assert failing.unfit == "3 of 6 requests failed (served)"
    assert find_crossover([compared([slow, broken], [quick, quick])]) is None


def test_chunks_without_token_counts_make_a_point_unfit() -> None:
    counted, chunks = sample(0.0, [0.1, 0.2]), sample(0.0, [0.1, 0.2], is_counted=False)
    assert compared([counted], [counted]).unfit == ""
    assert compared([chunks], [counted]).unfit == "the server does not report token counts (served)"


def test_finish_reason_with_a_lone_surrogate_is_written(tmp_path: Path) -> None:
    with samples_file(tmp_path / "raw.jsonl") as file:
        assert file
        write_samples(file, Closed(1), 0, SERVED, Round([sample(0.0, [0.1], finish_reason="\ud800")]))
    assert json.loads((tmp_path / "raw.jsonl").read_text())["finish_reason"] == "\ud800"
