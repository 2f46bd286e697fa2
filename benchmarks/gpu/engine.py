# SPDX-License-Identifier: Apache-2.0
"""Measure the torch engine on a GPU with models of real sizes.

    python -m benchmarks.gpu.engine [--shape 8b] [--seconds 500] [--out FILE.json]

Results: the cost of a step over 1, 2, 4 and 8 drafted tokens relative to one token, the share of the memory bandwidth
that it reaches, the cost of a 1B draft, and the resulting speed-up.

Models have the shapes of Llama 3.1 8B and Llama 3.2 1B with random weights in bf16. Such a draft is almost never
accepted, so acceptance is simulated: each step is verified at full cost, and each drafted token is then accepted with
the probability given in the table. Milliseconds are for complete steps, including Python; "replayed" is the target's
forward pass alone as a CUDA graph, the cost without launch overhead.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.engine_table import table
from benchmarks.gpu.measures import BATCHES, MEASURES, ON_GPUS, ROOM, SET_LEN, STEPS, Bench
from benchmarks.gpu.parts import LIBRARY
from benchmarks.gpu.random_model import PAIRS, randomize, write_hollow
from benchmarks.gpu.stepping import least_ms
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.device import choose_device
from trtspec.engine.drafting.base import BatchShape, DrafterConfig
from trtspec.engine.model.decoder import Decoder
from trtspec.kernels.verifier import choose_verifier
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.draft_target.drafter import DraftModelDrafter

COPIED_BYTES = 1 << 30


def machine(device: torch.device) -> dict[str, Any]:
    """Return the device's description, and the bytes/s that a copy reads and writes."""
    source = torch.ones((COPIED_BYTES if device.type == "cuda" else COPIED_BYTES >> 4) // 4, device=device)
    sink = torch.empty_like(source)
    rate = 2 * source.numel() * 4 / (least_ms(lambda: sink.copy_(source), device) / 1000)
    found: dict[str, Any] = {"torch": torch.__version__, "copy_bytes_per_s": round(rate)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
    return found


def load(shape: str, device: torch.device, steps: int, work: Path) -> Bench:
    """Create the pair on the device."""
    started = time.perf_counter()
    target_root, draft_root = (
        write_hollow(config, work / name) for name, config in zip(("target", "draft"), PAIRS[shape], strict=True)
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    room = BatchShape(max(BATCHES), ROOM, device, dtype)
    options = find_method("draft_target").parse({})
    with torch.backends.mkldnn.flags(enabled=False):  # packed weights cannot be randomized in place
        target = Decoder(load_checkpoint(target_root), room.rows, room.max_len, device, dtype)
        draft = DraftModelDrafter(DrafterConfig(target, draft_root, room, options, DraftShape(SET_LEN, SET_LEN)))
    for seed, model in enumerate((target, draft._model)):
        randomize(model, seed)
    rules = choose_verifier((LIBRARY,) if LIBRARY.exists() and device.type == "cuda" else (), device, dtype)
    found = {"machine": machine(device), "rules": type(rules).__name__}
    found["load_s"] = round(time.perf_counter() - started, 1)
    return Bench(target, draft, room, rules, steps, found)


def measure(bench: Bench, deadline: float, write: Callable[[dict[str, Any]], None]) -> bool:
    """Run all measurements that fit into the time; failures are recorded."""
    failed = bench.found["failed"] = {}
    for name, measurement in MEASURES.items():
        if name in ON_GPUS and bench.room.device.type != "cuda":
            continue
        started = time.perf_counter()
        try:
            if time.monotonic() > deadline:
                raise TimeoutError("no time left")
            bench.found[name] = measurement(bench)
        except Exception as error:  # record any failure and continue with the others
            failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: {failed.get(name, 'measured')}, {time.perf_counter() - started:.1f} s", flush=True)
        write(bench.found)
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=PAIRS, default="8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--seconds", type=float, default=500, help="time limit, after which no further measurement starts"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
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
