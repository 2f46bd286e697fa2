# SPDX-License-Identifier: Apache-2.0
"""Facts of interest on a GPU: what a step of the torch engine costs over 1, 2, 4 and 8 drafted tokens relative to one
token, what share of the memory's rate it reaches, what a draft of 1B costs, and the speed-up that follows.

    python -m benchmarks.gpu.engine [--shape 8b] [--seconds 500] [--out FILE.json]

Models have the shapes of Llama 3.1 8B and Llama 3.2 1B and random weights, in bf16. Such a draft is accepted next to
never, so acceptance is set: each step is verified at full cost, and then a drafted token counts as accepted with the
probability that the table names. Milliseconds are whole steps, Python included; "replayed" is the target's forward pass
alone as a CUDA graph, which is what the step would cost without launches.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.parts import LIBRARY
from benchmarks.gpu.random_model import PAIRS, randomize, read_bytes, write_hollow
from benchmarks.gpu.stepping import MAX_TOKENS, Load, RandomDrafter, SetRules, chains_of, clocked, timed_steps, wait
from trtspec.engines.embedded.decoder import Decoder
from trtspec.engines.embedded.device import choose_device
from trtspec.engines.embedded.drafters.base import Drafter, Room, Setup
from trtspec.engines.embedded.drafters.draft_target import ModelDrafter
from trtspec.engines.embedded.prefill import prefill
from trtspec.engines.embedded.request import Sampling
from trtspec.kernels.rules import choose_rules
from trtspec.methods.base import Extent, find_method

BATCHES = (1, 8, 32)
DRAFT_LENS = (1, 2, 4, 8)
WIDTHS = (1, 2, 3, 5, 9, 17, 33, 65)  # the last ones are trees'
ACCEPTANCES = (0.6, 0.8, 0.9)
SET_LEN = 4
PROMPT_LEN = 256
STEPS = 30
ROOM = 1024  # tokens of a row, all that is measured among them
COPIED_BYTES = 1 << 30
AGREEMENT_TOKENS, AGREEMENT_WIDTH = 128, 5


@dataclass
class Bench:
    """A pair of models on a device, and what was measured of them so far."""

    target: Decoder
    draft: ModelDrafter
    room: Room
    rules: Any
    steps: int
    found: dict[str, Any] = field(default_factory=dict)

    def chains(self, drafter: Drafter | None = None, draft_len: int = 0, rules: Any = None) -> Any:
        """Return what drafts chains for the target: random tokens, unless a drafter is given."""
        method = find_method("none")
        setup = Setup(self.target, None, self.room, method.parse({}), Extent(draft_len, draft_len))
        return chains_of(self.target, drafter or RandomDrafter(setup), rules or self.rules, draft_len)


def measure_alone(bench: Bench) -> list[Any]:
    """The target alone: greedy, and drawn, for which the uniforms go to the device."""
    rows = []
    rate = bench.found["machine"]["copy_bytes_per_s"]
    for batch in BATCHES:
        for how, sampling in (("greedy", Sampling()), ("sampled", Sampling(1.0, seed=1))):
            row = timed_steps(bench.chains(), Load(batch, PROMPT_LEN, sampling), bench.steps)
            nbytes = read_bytes(bench.target) + batch * row["text_len"] * bench.target.config.kv_bytes_per_token(2)
            per_s = 1000 * nbytes / row["ms"]
            rows.append({"how": how, **row, "read_bytes_per_s": round(per_s), "share_of_copy": round(per_s / rate, 3)})
    return rows


def measure_drafts(bench: Bench) -> list[Any]:
    """A step over drafted tokens, none of them accepted but by chance, relative to the target alone."""
    alone = {row["batch"]: row["ms"] for row in bench.found["alone"] if row["how"] == "greedy"}
    rows = []
    for batch in BATCHES:
        for draft_len in DRAFT_LENS:
            row = timed_steps(bench.chains(draft_len=draft_len), Load(batch, PROMPT_LEN), bench.steps)
            rows.append({"draft_len": draft_len, **row, "of_one_token": round(row["ms"] / alone[batch], 3)})
    return rows


def measure_forward(bench: Bench) -> list[Any]:
    """The target's forward pass alone by its width, as the engine launches it and replayed as a CUDA graph."""
    model, rows = bench.target, []
    for batch in BATCHES:
        for width in WIDTHS:
            tokens = torch.zeros((batch, width), dtype=torch.int64, device=model.device)
            window = model.windows.chain([PROMPT_LEN] * batch, width)

            def run(tokens: Any = tokens, window: Any = window) -> Any:
                return model.forward(tokens, window)

            times = {"launched_ms": _least(run, model.device)}
            if model.device.type == "cuda":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    run()
                times["replayed_ms"] = _least(graph.replay, model.device)
            rows.append({"batch": batch, "width": width, **times})
    return rows


def measure_set(bench: Bench) -> list[Any]:
    """Tokens/s where drafted tokens are accepted with a set probability: drafts for nothing, and the small model's."""
    alone = {row["batch"]: row["tokens_per_s"] for row in bench.found["alone"] if row["how"] == "greedy"}
    rows = []
    for batch in BATCHES:
        for acceptance in ACCEPTANCES:
            for drafts, drafter in (("free", None), ("small model", bench.draft)):
                rules = SetRules(bench.rules, acceptance, random.Random(0))
                speculator = bench.chains(drafter, SET_LEN, rules)
                row = timed_steps(speculator, Load(batch, PROMPT_LEN), bench.steps)
                speed_up = round(row["tokens_per_s"] / alone[batch], 3)
                rows.append(
                    {"drafts": drafts, "draft_len": SET_LEN, "acceptance": acceptance, **row, "speed_up": speed_up}
                )
    return rows


def measure_small(bench: Bench) -> list[Any]:
    """Drafting with the small model: a step of 1 and of 4 drafted tokens with its real acceptance."""
    return [
        {
            "draft_len": draft_len,
            **timed_steps(bench.chains(bench.draft, draft_len), Load(batch, PROMPT_LEN), bench.steps),
        }
        for batch in BATCHES
        for draft_len in (1, SET_LEN)
    ]


def measure_agreement(bench: Bench) -> dict[str, Any]:
    """How often a token's argmax among five tokens is what it is alone: what bf16 leaves of equal texts."""
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
    """Which kernels a step of the target at batch 1 consists of, and how long the GPU is busy with them."""
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


def machine(device: torch.device) -> dict[str, Any]:
    """Return what is measured on, and the bytes/s that a copy reads and writes."""
    source = torch.ones((COPIED_BYTES if device.type == "cuda" else COPIED_BYTES >> 4) // 4, device=device)
    sink = torch.empty_like(source)
    rate = 2 * source.numel() * 4 / (_least(lambda: sink.copy_(source), device) / 1000)
    found: dict[str, Any] = {"torch": torch.__version__, "copy_bytes_per_s": round(rate)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
    return found


def load(shape: str, device: torch.device, steps: int, work: Path) -> Bench:
    """Make the pair on the device."""
    started = time.perf_counter()
    target_root, draft_root = (
        write_hollow(config, work / name) for name, config in zip(("target", "draft"), PAIRS[shape], strict=True)
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    room = Room(max(BATCHES), ROOM, device, dtype)
    target = Decoder(target_root, room.rows, room.max_len, device, dtype)
    options = find_method("draft_target").parse({})
    draft = ModelDrafter(Setup(target, draft_root, room, options, Extent(SET_LEN, SET_LEN)))
    for seed, model in enumerate((target, draft._model)):
        randomize(model, seed)
    rules = choose_rules((LIBRARY,) if LIBRARY.exists() and device.type == "cuda" else (), device, dtype)
    found = {"machine": machine(device), "rules": type(rules).__name__}
    found["load_s"] = round(time.perf_counter() - started, 1)
    return Bench(target, draft, room, rules, steps, found)


def measure(bench: Bench, deadline: float, write: Callable[[dict[str, Any]], None]) -> bool:
    """Measure everything that there is time for; a measurement that fails is written down as such."""
    failed = bench.found["failed"] = {}
    for name, measurement in MEASURES.items():
        if name in ON_GPUS and bench.room.device.type != "cuda":
            continue
        started = time.perf_counter()
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("no time was left")
            bench.found[name] = measurement(bench)
        except Exception as error:  # whatever it is, the others are worth having
            failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: {failed.get(name, 'measured')}, {time.perf_counter() - started:.1f} s", flush=True)
        write(bench.found)
    return not failed


def table(found: dict[str, Any]) -> list[str]:
    """Return what a reader wants to know first."""
    lines = [f"a copy moves {found['machine']['copy_bytes_per_s'] / 1e9:.0f} GB/s; rules: {found['rules']}"]
    for row in found.get("alone", []):
        share = f"{row['read_bytes_per_s'] / 1e9:.0f} GB/s, {row['share_of_copy']:.0%} of a copy's"
        lines.append(
            f"alone, {row['how']:<8} b{row['batch']:<3} {row['ms']:8.2f} ms {row['tokens_per_s']:9.0f} tok/s  {share}"
        )
    for row in found.get("over_drafts", []):
        lines.append(
            f"{row['draft_len']} drafted    b{row['batch']:<3} {row['ms']:8.2f} ms"
            f" {row['of_one_token']:7.2f}x one token"
        )
    for row in found.get("forward", []):
        replayed = f"{row['replayed_ms']:8.2f} replayed" if "replayed_ms" in row else ""
        lines.append(f"forward of {row['width']:<3} b{row['batch']:<3} {row['launched_ms']:8.2f} ms {replayed}")
    for row in found.get("set_acceptance", []):
        how = f"acceptance {row['acceptance']} set, {row['drafts']}"
        lines.append(f"{how:<34} b{row['batch']:<3} {row['tokens_per_s']:9.0f} tok/s {row['speed_up']:6.2f}x")
    for row in found.get("small_model", []):
        lines.append(f"small model drafts {row['draft_len']}  b{row['batch']:<3} {row['ms']:8.2f} ms a step")
    if "agreement" in found:
        lines.append(f"argmax of {AGREEMENT_WIDTH} tokens at once is that of one: {found['agreement']['share']:.1%}")
    return lines + [f"{name}: {why}" for name, why in found.get("failed", {}).items()]


def _least(call: Callable[[], object], device: torch.device) -> float:
    """Return the least milliseconds of a call."""
    for _ in range(3):
        call()
    return round(min(clocked(call, device) for _ in range(10)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PAIRS, default="8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=500, help="after which no further measurement begins")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    deadline = time.monotonic() + arguments.seconds

    def write(found: dict[str, Any]) -> None:
        if arguments.out:
            document = {"claim": " ".join((__doc__ or "").split("\n\n")[0].split()), **found, "table": table(found)}
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")

    with TemporaryDirectory() as work, torch.inference_mode():
        bench = load(arguments.shape, choose_device(arguments.device), arguments.steps, Path(work))
        complete = measure(bench, deadline, write)
    print("\n".join(table(bench.found)))
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
