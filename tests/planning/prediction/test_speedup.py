# SPDX-License-Identifier: Apache-2.0
"""Speed-up formulas on machines and models with round numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.planning.prediction.published import work
from trtspec.core.gpus import GPUS
from trtspec.planning.prediction.flops import NO_SIZES
from trtspec.planning.prediction.predict import choose_placement, dollars_per_million
from trtspec.planning.prediction.speedup import (
    DrafterCost,
    EfficiencyData,
    GpuGroup,
    Passes,
    TargetDraftPair,
    pass_seconds,
    published_acceptance,
    reading_cost,
    tree_tokens,
)

H200 = GpuGroup(GPUS["h200"])
TARGET, DRAFT = "llama-3.3-70b-instruct", "llama-3.2-1b-instruct"
DEPTHS = range(1, 65)


def pair(machine: GpuGroup = H200, context: int = 1000) -> TargetDraftPair:
    return TargetDraftPair(work(TARGET, "fp8"), machine, DrafterCost(work(DRAFT, "fp8"), machine), context)


def test_pass_time_is_reading_computing_and_layer_overhead() -> None:
    target, gpu, reached = work(TARGET, "fp8"), H200.gpu, H200.reached
    reading = (target.dense.nbytes + 4 * 1000 * 163_840) / (4.8e12 * reached.bandwidth)
    computing = 2 * target.dense.numbers * 4 * 3 / (1979e12 * reached.compute)
    assert pass_seconds(target, H200, 4, 3, 1000) == pytest.approx(reading + computing + 80 * reached.layer_s)
    unquantized = replace(target, is_fp8=False)
    more = 2 * target.dense.numbers * 12 * (1 / gpu.flops - 1 / gpu.fp8_flops) / reached.compute
    assert pass_seconds(unquantized, H200, 4, 3, 1000) - pass_seconds(target, H200, 4, 3, 1000) == pytest.approx(more)


def test_tensor_parallel_pass_adds_ring_communication() -> None:
    target, two = work(TARGET, "fp8"), GpuGroup(GPUS["h200"], 2)
    alone, shared = pass_seconds(target, H200, 1, 1, 0), pass_seconds(target, two, 1, 1, 0)
    halved = (alone - 80 * H200.reached.layer_s) / 2 + 80 * H200.reached.layer_s
    assert shared == pytest.approx(halved + 80 * 2 * 8192 * 2 / 450e9)


def test_step_time_is_drafting_verification_and_overhead() -> None:
    found, reached = pair(), H200.reached
    drafts = 5 * (pass_seconds(found.drafting.work, H200, 2, 1, 1000) + reached.draft_s)
    verified = pass_seconds(found.target, H200, 2, 6, 1000)
    assert found.step_seconds(2, 5) == pytest.approx(drafts + verified + reached.step_s)
    assert found.step_seconds(2, 0) == found.alone_seconds(2)


def test_drafting_time_depends_on_passes_and_breadth() -> None:
    block = replace(pair().drafting, passes="one")
    assert block.seconds(5, 2, 0) == pytest.approx(pass_seconds(block.work, H200, 2, 5, 0) + H200.reached.draft_s)
    assert replace(block, passes="none").seconds(5, 2, 0) == 0
    tree = replace(pair().drafting, breadth=3.0)
    assert tree.seconds(4, 1, 0) == pytest.approx(4 * (pass_seconds(tree.work, H200, 1, 3, 0) + H200.reached.draft_s))


@pytest.mark.parametrize("passes", ["none", "one", "each"])
@pytest.mark.parametrize(("depth", "breadth"), [(1, 1.0), (5, 1.0), (4, 2.5)])
@pytest.mark.parametrize("target", [TARGET, "mixtral-8x7b-instruct-v0.1"])
def test_reading_cost_matches_a_step_on_a_machine_that_only_reads(
    target: str, depth: int, breadth: float, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = GpuGroup(replace(H200.gpu, flops=float("inf"), fp8_flops=0))
    monkeypatch.setitem(vars(machine), "reached", EfficiencyData(1, 1, 0, 0, 0, ()))
    drafting = DrafterCost(work(DRAFT), machine, passes, breadth)
    step = 1 / TargetDraftPair(work(target), machine, drafting, 0).step_ratio(depth, 1)
    assert reading_cost(work(target), work(DRAFT), passes, depth, breadth) == pytest.approx(step)


def test_chain_reads_the_draft_per_token_and_a_block_reads_it_once() -> None:
    target, draft = work(TARGET), work(DRAFT)
    share = draft.dense.nbytes / target.dense.nbytes
    costs = [reading_cost(target, draft, passes, 5, 1.0) for passes in ("none", "one", "each")]
    assert costs == pytest.approx([1, 1 + share, 1 + 5 * share])
    assert reading_cost(target, None, "none", 5, 1.0) == 1


def test_more_tokens_read_more_experts() -> None:
    """With 2 of 8 experts, the next six tokens of a text leave one unread with probability 0.75 ** 6."""
    experts = replace(work("mixtral-8x7b-instruct-v0.1"), dense=NO_SIZES)
    assert reading_cost(experts, None, "none", 5, 1.0) == pytest.approx((1 - 0.75**6) / 0.25)


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("texts", [1, 16, 100])
def test_best_depth_matches_an_exhaustive_search(rate: float, texts: int) -> None:
    found = pair()
    best = max(DEPTHS, key=lambda depth: found.speedup(rate, depth, texts))
    expected = best if found.speedup(rate, best, texts) > 1 else 0
    assert found.best_depth(rate, DEPTHS, texts) == expected


def test_drafting_is_faster_only_below_the_break_even_batch() -> None:
    found = pair()
    batch = found.break_even(0.8, 10)
    assert batch
    assert found.speedup(0.8, 10, batch) <= 1 < found.speedup(0.8, 10, batch - 1)
    assert found.break_even(0.0, 10) == 1
    assert replace(found, drafting=DrafterCost(None, H200, "none")).break_even(0.99, 2) is None


def test_schedule_depths_decrease_from_the_best_depth_to_zero() -> None:
    found = pair()
    schedule = found.schedule(0.7, DEPTHS, 300)
    batches, depths = zip(*schedule, strict=True)
    assert batches == tuple(sorted(batches))
    assert batches[-1] == 300
    assert all(before > after for before, after in pairwise(depths))
    assert depths[0] == found.best_depth(0.7, DEPTHS, batches[0])
    assert depths[-1] == 0


def test_tree_tokens_match_a_simulation() -> None:
    rates, rng, steps = (0.8, 0.6, 0.5), random.Random(1), 200_000
    total = 0
    for _ in range(steps):
        total += 1
        for rate in rates:
            if rng.random() >= rate:
                break
            total += 1
    assert tree_tokens(rates) == pytest.approx(1 + 0.8 + 0.48 + 0.24)
    assert total / steps == pytest.approx(tree_tokens(rates), rel=0.01)


def test_longer_context_makes_target_and_draft_slower() -> None:
    short, long = pair(context=100), pair(context=30_000)
    assert short.alone_seconds(16) < long.alone_seconds(16)
    assert short.drafting.seconds(5, 16, 100) < short.drafting.seconds(5, 16, 30_000)


def test_draft_is_placed_on_the_targets_gpu_if_it_fits() -> None:
    placed = choose_placement(pair(), 0.8, 5, 1, has_room=True)
    assert placed.best.where == "the target's GPU"
    assert "where the speed-up for each GPU would be" in placed.why
    assert [place.where for place in placed.places] == ["the target's GPU", "a GPU of its own", "the CPU"]
    cpu = placed.places[-1]
    assert cpu.pass_s > 3 * placed.best.pass_s


def test_draft_without_room_is_placed_on_another_gpu_or_the_cpu() -> None:
    placed = choose_placement(pair(GpuGroup(GPUS["h200"], 4)), 0.8, 5, 1, has_room=False)
    assert placed.best.where in ("a GPU of its own", "the CPU")
    assert placed.why.startswith("the target's GPUs lack the memory for it; ")
    assert [place.fits for place in placed.places] == [False, False, True, True]


def test_dollars_per_million_tokens_follow_price_gpus_and_speed() -> None:
    assert dollars_per_million(gpu_price=3.6, gpus=2, tokens_per_s=1000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("method", "lengths"), [("eagle", (2.1, 2.29, 2.39, 2.43)), ("eagle3", (2.36, 2.79, 3.08, 3.32))]
)
def test_published_acceptance_gives_the_published_tokens_per_step(method: str, lengths: tuple[float, ...]) -> None:
    """https://github.com/vllm-project/vllm/issues/20780, draft_len 2 to 5."""
    known = published_acceptance(method)
    assert known
    assert [tree_tokens(known.at_depth(depth)) for depth in range(2, 6)] == pytest.approx(lengths, abs=0.02)
    assert published_acceptance("ngram") is None
