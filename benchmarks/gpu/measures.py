# SPDX-License-Identifier: Apache-2.0
"""Independent measurements of the torch engine with a pair of models on a device."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.random_model import read_bytes
from benchmarks.gpu.stepping import MAX_TOKENS, Load, RandomDrafter, SetRules, chains_of, least_ms, timed_steps, wait
from trtspec.engine.drafting.base import BatchShape, Drafter, DrafterConfig
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.model.decoder import NONE_SKIPPED, Decoder
from trtspec.engine.model.pass_graphs import MOST_TOKENS
from trtspec.engine.prefill import prefill
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_target.drafter import DraftModelDrafter

BATCHES = (1, 8, 32)
DRAFT_LENS = (1, 2, 4, 8)
WIDTHS = (1, 2, 3, 5, 9, 17, 33, 65)  # the last ones are for trees
ACCEPTANCES = (0.6, 0.8, 0.9)
SET_LEN = 4
PROMPT_LEN = 256
STEPS = 30
ROOM = 1024  # tokens per row, enough for all measurements
AGREEMENT_TOKENS, AGREEMENT_WIDTH = 128, 5


@dataclass
class Bench:
    """A pair of models on a device, and their measurements so far."""

    target: Decoder
    draft: DraftModelDrafter
    room: BatchShape
    rules: Any
    steps: int
    found: dict[str, Any] = field(default_factory=dict)

    def chains(self, drafter: Drafter | None = None, draft_len: int = 0, rules: Any = None) -> Any:
        """Return a speculator for chains of random tokens, or of the given drafter."""
        method = find_method("none")
        setup = DrafterConfig(self.target, None, self.room, method.parse({}), DraftShape(draft_len, draft_len))
        return chains_of(self.target, drafter or RandomDrafter(setup), rules or self.rules, draft_len)


def measure_alone(bench: Bench) -> list[Any]:
    """Measure the target alone: greedy, and sampled, which copies random numbers to the device."""
    rows = []
    rate = bench.found["machine"]["copy_bytes_per_s"]
    for batch in BATCHES:
        for how, sampling in (("greedy", SamplingOptions()), ("sampled", SamplingOptions(1.0, seed=1))):
            row = timed_steps(bench.chains(), Load(batch, PROMPT_LEN, sampling), bench.steps)
            nbytes = read_bytes(bench.target) + batch * row["text_len"] * bench.target.config.kv_bytes_per_token(2)
            per_s = 1000 * nbytes / row["ms"]
            rows.append({"how": how, **row, "read_bytes_per_s": round(per_s), "share_of_copy": round(per_s / rate, 3)})
    return rows


def measure_drafts(bench: Bench) -> list[Any]:
    """Measure a step over drafted tokens, almost none accepted, relative to the target alone."""
    alone = {row["batch"]: row["ms"] for row in bench.found["alone"] if row["how"] == "greedy"}
    rows = []
    for batch in BATCHES:
        for draft_len in DRAFT_LENS:
            row = timed_steps(bench.chains(draft_len=draft_len), Load(batch, PROMPT_LEN), bench.steps)
            rows.append({"draft_len": draft_len, **row, "of_one_token": round(row["ms"] / alone[batch], 3)})
    return rows


def measure_forward(bench: Bench) -> list[Any]:
    """Measure the target's forward pass by width, launched by the engine and replayed as a CUDA graph."""
    model, rows = bench.target, []
    for batch in BATCHES:
        for width in WIDTHS:
            tokens = torch.zeros((batch, width), dtype=torch.int64, device=model.device)
            window = model.windows.chain([PROMPT_LEN] * batch, width)

            def launched(tokens: Any = tokens, window: Any = window) -> Any:
                return model._run(tokens, window, (), None, NONE_SKIPPED)

            def replayed(tokens: Any = tokens, window: Any = window) -> Any:
                return model.forward(tokens, window)

            row = {"batch": batch, "width": width, "launched_ms": least_ms(launched, model.device)}
            if model.device.type == "cuda" and batch * width <= MOST_TOKENS:
                row["replayed_ms"] = least_ms(replayed, model.device)
            rows.append(row)
    return rows


def measure_set(bench: Bench) -> list[Any]:
    """Measure steps with simulated acceptance, with free drafts and with the small model's; tokens/s are expected."""
    alone = {row["batch"]: row["tokens_per_s"] for row in bench.found["alone"] if row["how"] == "greedy"}
    rows = []
    for batch in BATCHES:
        for acceptance in ACCEPTANCES:
            for drafts, drafter in (("free", None), ("small model", bench.draft)):
                rules = SetRules(bench.rules, acceptance, random.Random(0))
                speculator = bench.chains(drafter, SET_LEN, rules)
                row = timed_steps(speculator, Load(batch, PROMPT_LEN), bench.steps)
                # the expected tokens, because few steps of few rows are far from them
                tokens = sum(acceptance**place for place in range(SET_LEN + 1))
                row |= {
                    "tokens_per_step": round(tokens, 3),
                    "tokens_per_s": round(1000 * batch * tokens / row["ms"], 1),
                }
                speed_up = round(row["tokens_per_s"] / alone[batch], 3)
                rows.append(
                    {"drafts": drafts, "draft_len": SET_LEN, "acceptance": acceptance, **row, "speed_up": speed_up}
                )
    return rows


def measure_small(bench: Bench) -> list[Any]:
    """Measure drafting with the small model: a step of 1 and of 4 drafted tokens with its real acceptance."""
    return [
        {
            "draft_len": draft_len,
            **timed_steps(bench.chains(bench.draft, draft_len), Load(batch, PROMPT_LEN), bench.steps),
        }
        for batch in BATCHES
        for draft_len in (1, SET_LEN)
    ]


def measure_agreement(bench: Bench) -> dict[str, Any]:
    """Measure how often a token's argmax among five tokens equals its argmax alone in bf16."""
    model = bench.target
    (row,) = Load(1, PROMPT_LEN).begin(bench.chains(), 10**6)
    speculator = bench.chains()
    for _ in range(AGREEMENT_TOKENS):
        row.advance(speculator.step([row])[0])
    text, same = row.text, 0
    prefill(model, [text[:PROMPT_LEN]], 0, MAX_TOKENS)
    starts = range(PROMPT_LEN, len(text) - AGREEMENT_WIDTH, AGREEMENT_WIDTH)
    for start in starts:
        tokens = torch.tensor([text[start : start + AGREEMENT_WIDTH]], device=model.device)
        said = model.forward(tokens, model.windows.chain([start], AGREEMENT_WIDTH)).argmax(-1).tolist()
        same += sum(one == other for one, other in zip(said, text[start + 1 :], strict=False))
    count = len(starts) * AGREEMENT_WIDTH
    return {"tokens": count, "same": same, "share": round(same / count, 4)}


def measure_profile(bench: Bench) -> dict[str, Any]:
    """List the kernels of a target step at batch 1 and the GPU's busy time."""
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for draft_len in (0, SET_LEN):
        speculator = bench.chains(draft_len=draft_len)
        rows = Load(1, PROMPT_LEN).begin(speculator, 10**6)
        speculator.step(rows)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            speculator.step(rows)
            wait(bench.room.device)
        kernels = [event for event in profiled.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
        kernels.sort(key=lambda event: -event.self_device_time_total)
        found[f"{draft_len} drafted"] = {
            "launches": sum(event.count for event in kernels),
            "busy_ms": round(sum(event.self_device_time_total for event in kernels) / 1000, 3),
            "kernels": [
                [event.key[:90], event.count, round(event.self_device_time_total, 1)] for event in kernels[:15]
            ],
        }
    return found


MEASURES: dict[str, Callable[[Bench], Any]] = {
    "alone": measure_alone,
    "over_drafts": measure_drafts,
    "forward": measure_forward,
    "set_acceptance": measure_set,
    "small_model": measure_small,
    "agreement": measure_agreement,
    "profile": measure_profile,
}
ON_GPUS = {"profile"}
