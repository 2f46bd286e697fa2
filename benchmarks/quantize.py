# SPDX-License-Identifier: Apache-2.0
"""Measure the quantization kernels against numpy, torch and a memory copy.

    python benchmarks/quantize.py [--seconds 0.5] [--out benchmarks/results/quantize.json]

Claim: quantization never limits a build. On one core, the compiled kernels find the largest magnitude of bfloat16
weights at 2 GB/s or more, and quantize them to FP8, by tensor and by row, at 1.5 GB/s or more.

Each kernel is measured with each instruction set of this machine, numpy, torch on one thread, and a copy of as many
bytes. "cached" processes the same chunk again, of 1 MiB as in a conversion; "memory" processes chunks that exceed all
caches. GB/s refer to input, the median of all chunks, by one thread's processor time, which depends less on other load
than wall-clock time. Before the measurement, the kernels' output must match numpy bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import environment

from trtspec.checkpoints.arithmetic import Arithmetic, NumpyArithmetic, from_floats
from trtspec.kernels.bindings import load_library
from trtspec.kernels.build import build_library, plan_library
from trtspec.kernels.host_kernels import ITEMS, CompiledArithmetic, Instructions, fastest_instructions

CHUNK_BYTES, MEMORY_BYTES = 1 << 20, 256 << 20
COLUMNS = 4096
SCALE = np.float32(0.00123)
TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}

Call = Callable[[np.ndarray], Any]


class Kernel(NamedTuple):
    """A measured kernel on weights of a dtype: trtspec's implementation and torch's operations."""

    name: str
    dtype: str
    ours: Callable[[Arithmetic], Call]
    torch: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def cast_of(source: str, target: str) -> Kernel:
    """Return the kernel of a cast."""
    return Kernel(
        f"{source} to {target}",
        source,
        lambda arithmetic: lambda bits: arithmetic.cast(bits, source, target),
        lambda weights: (weights.to(TORCH[target]),),
    )


def by_tensor(weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Quantize with one scale, like a plain torch loop."""
    return ((weights.float() / float(SCALE)).to(torch.float8_e4m3fn),)


def by_row(weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Quantize with one scale per row, like a plain torch loop."""
    scales = weights.abs().amax(1, keepdim=True).float() / 448.0
    return (weights.float() / scales).to(torch.float8_e4m3fn), scales


KERNELS = [
    Kernel("amax BF16", "BF16", lambda one: lambda bits: one.count(bits, "BF16")[0], lambda w: (w.abs().amax(),)),
    Kernel("e4m3 by tensor BF16", "BF16", lambda one: one.quantizer("BF16", SCALE), by_tensor),
    Kernel("e4m3 by row BF16", "BF16", lambda one: lambda bits: one.quantize_rows(bits, "BF16")[:2], by_row),
    Kernel("e4m3 by tensor F16", "F16", lambda one: one.quantizer("F16", SCALE), by_tensor),
    Kernel("e4m3 by row F16", "F16", lambda one: lambda bits: one.quantize_rows(bits, "F16")[:2], by_row),
    Kernel("e4m3 by tensor F32", "F32", lambda one: one.quantizer("F32", SCALE), by_tensor),
    cast_of("BF16", "F16"),
    cast_of("F16", "BF16"),
    cast_of("F32", "BF16"),
    cast_of("F32", "F16"),
    cast_of("BF16", "F32"),
    cast_of("F8_E4M3", "BF16"),
]


def sides() -> dict[str, Arithmetic]:
    """Return trtspec's implementations by name; the library is compiled unless cached."""
    library = load_library(build_library(plan_library(("quantize",))))
    found: dict[str, Arithmetic] = {"numpy": NumpyArithmetic()}
    for each in range(Instructions.PORTABLE, fastest_instructions(library) + 1):
        found[Instructions(each).name.lower()] = CompiledArithmetic(library, Instructions(each))
    return found


def chunks_of(dtype: str, nbytes: int) -> list[np.ndarray]:
    """Return random weights of a dtype in chunks of whole rows; all chunks after the first are copies."""
    rows = CHUNK_BYTES // (COLUMNS * np.dtype(ITEMS[dtype]).itemsize)
    values = np.random.default_rng(0).standard_normal((rows, COLUMNS), dtype=np.float32) * np.float32(0.02)
    first = from_floats(values, dtype)
    return [first, *(first.copy() for _ in range(nbytes // CHUNK_BYTES - 1))]


def rate_of(call: Call, chunks: list[np.ndarray], seconds: float) -> float:
    """Return the median input bytes/s over chunks processed in turn, by this thread's processor time."""
    call(chunks[0])
    times: list[float] = []
    turns = itertools.cycle(chunks)
    while sum(times) < seconds:
        chunk = next(turns)
        started = time.thread_time()
        call(chunk)
        times.append(time.thread_time() - started)
    return chunks[0].nbytes / statistics.median(times)


def calls_of(kernel: Kernel, implementations: dict[str, Arithmetic]) -> Iterator[tuple[str, Call]]:
    """Yield each implementation's name and call; a copy of the input is the memory limit."""
    for name, arithmetic in implementations.items():
        yield name, kernel.ours(arithmetic)
    yield "torch", lambda bits: kernel.torch(torch.from_numpy(bits).view(TORCH[kernel.dtype]))
    sink = np.empty(CHUNK_BYTES, np.uint8)
    yield "memcpy", lambda bits: np.copyto(sink[: bits.nbytes], bits.reshape(-1).view(np.uint8))


def check(kernel: Kernel, implementations: dict[str, Arithmetic]) -> None:
    """Raise AssertionError if an implementation's output differs from numpy's."""
    (bits,) = chunks_of(kernel.dtype, CHUNK_BYTES)
    expected, *others = [kernel.ours(each)(bits) for each in implementations.values()]
    for found in others:
        np.testing.assert_equal(found, expected)


def measure(kernel: Kernel, implementations: dict[str, Arithmetic], seconds: float) -> dict[str, Any]:
    """Return each implementation's GB/s of input, from caches and from memory."""
    check(kernel, implementations)
    places = {"cached": CHUNK_BYTES, "memory": MEMORY_BYTES}
    rates: dict[str, dict[str, float]] = {}
    for place, nbytes in places.items():
        chunks = chunks_of(kernel.dtype, nbytes)
        rates[place] = {
            name: round(rate_of(call, chunks, seconds) / 1e9, 2) for name, call in calls_of(kernel, implementations)
        }
    return {"kernel": kernel.name, **rates}


def table(results: list[dict[str, Any]]) -> list[str]:
    """Return one line per kernel and memory level."""
    names = list(results[0]["cached"])
    lines = [f"{'GB/s of input':<21}{'':<8}" + "".join(f"{name:>10}" for name in names)]
    for result, place in itertools.product(results, ("cached", "memory")):
        rates = "".join(f"{result[place][name]:>10.2f}" for name in names)
        lines.append(f"{result['kernel']:<21}{place:<8}{rates}")
    return lines


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each side of a kernel, cached and from memory")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    implementations = sides()
    results = [measure(kernel, implementations, arguments.seconds) for kernel in KERNELS]
    print("\n".join(table(results)))
    if arguments.out:
        document = {"environment": environment(), "table": table(results), "kernels": results}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
