# SPDX-License-Identifier: Apache-2.0
"""Measure the speed and memory of converting a checkpoint to FP8 for four ranks, compared with the machine's limits.

One run measures, on files that it creates (layers of Llama 3 8B's shape, random bfloat16 weights):

* trtspec, with every byte on disk at the end: the source cold or in the page cache, the output on disk blocks that were
  written before or never (on a thinly provisioned disk, the first write of a block is several times slower)
* a rank loop as in TensorRT-LLM's examples: for each rank open all shards, slice them, quantize with torch, save
* NVIDIA's exporter (nvidia-modelopt) on a model of the same shape that fits into memory, quantized before the clock
  starts
* the limit: the smaller of two measured rates, quantizing on all cores, and the disk (every cold input byte is read,
  every output byte is written)
* the peak memory of the converting process with 2 GB and 32 GB of input (sparse files)
* the complete `trtspec build` of sources of 1, 4, 8 and 32 GB, cold and cached, with its own limit, `cat` and `cp`
  (convert_builds.py)
* `check` and `plan`, each in a separate process, on the headers of a 405B model in 190 shards

    python benchmarks/convert.py [--gigabytes 8] [--sizes 1 4 8 32] [--runs 3] [--out benchmarks/results/convert.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from convert_builds import ENCODINGS, measure_sizes, summarize_builds
from convert_builds import RANKS as TENSOR
from convert_limits import measure_quantizing, measure_read, measure_write
from convert_source import LLAMA_405B, copy_tokenizer, forget, make_source, remember
from machine import cpu_name
from rank_loop import convert_by_rank

from trtspec.checkpoints.safetensors import lay_out

RANKS = 4
# ---- the source ----


def make_headers(root: Path) -> None:
    """Write the headers of Llama 3.1 405B in 190 sparse shards, with a tokenizer."""
    layers, shards = 126, 190
    tensors = [tensor for tensors in LLAMA_405B.shards(layers) for tensor in tensors]
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(LLAMA_405B.config(layers)))
    weight_map = {}
    for number in range(shards):
        name = f"model-{number:05}.safetensors"
        mine = tensors[number * len(tensors) // shards : (number + 1) * len(tensors) // shards]
        layout = lay_out((tensor, "BF16", shape) for tensor, shape in mine)
        with (root / name).open("wb") as file:
            file.write(layout.header)
            file.truncate(layout.nbytes)
        weight_map |= {tensor: name for tensor, _ in mine}
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    copy_tokenizer(root)


# ---- the timed sides, each in a separate process ----


def convert_ours(source: Path, out: Path) -> None:
    """Convert with trtspec; its journal syncs every byte to disk before it returns."""
    from trtspec.backends.common.convert import convert_checkpoint
    from trtspec.checkpoints.conversion import Activations
    from trtspec.checkpoints.quant_scheme import Scheme
    from trtspec.checkpoints.sharding import ParallelMapping

    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    modules = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    names = [f"transformer.layers.{layer}.{module}" for layer in range(layers) for module in modules]
    out.mkdir(exist_ok=True)
    journal = out.with_suffix(".journal")
    journal.unlink(missing_ok=True)
    measured = Activations(inputs=dict.fromkeys(names, 1.0))
    convert_checkpoint(
        source, out, mapping=ParallelMapping(RANKS), scheme=Scheme("fp8"), activations=measured, journal=journal
    )


def convert_by_modelopt(source: Path, out: Path) -> float:
    """Export with NVIDIA's exporter; return the seconds of the export without loading and calibration."""
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from modelopt.torch.quantization import FP8_DEFAULT_CFG, quantize
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.config.architectures = ["LlamaForCausalLM"]
    quantize(model, FP8_DEFAULT_CFG, lambda model: model(torch.arange(32)[None]))
    out.mkdir(exist_ok=True)
    started = time.perf_counter()
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(model, "llama", torch.bfloat16, out, inference_tensor_parallel=RANKS)
    os.sync()
    return time.perf_counter() - started


SIDES: dict[str, Callable[[Path, Path], float | None]] = {
    "trtspec": convert_ours,
    "rank-loop": convert_by_rank,
    "modelopt": convert_by_modelopt,
}


def run_side(side: str, source: Path, out: Path) -> tuple[float, int]:
    """Run a side in a separate process; return (seconds, peak memory in bytes)."""
    command = [sys.executable, __file__, "--side", side, str(source), str(out)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3600)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["peak_bytes"]


def side_main(side: str, source: Path, out: Path) -> None:
    """Entry point of that process."""
    started = time.perf_counter()
    seconds = SIDES[side](source, out)
    total = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps({"seconds": seconds or total, "peak_bytes": peak}))


# ---- the limit ----


def limit_of(quantizing: float, read: float, write: float, out_ratio: float, *, cold: bool) -> float:
    """Return the input bytes/s that quantizing and the disk allow, the smaller of both; the disk reads or writes."""
    disk = 1.0 / ((1.0 / read if cold else 0.0) + out_ratio / write)
    return min(quantizing, disk)


# ---- the run ----


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a directory on a disk with enough space."""
    root = Path(tempfile.mkdtemp(prefix="convert-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def measure(gigabytes: float, sizes: list[float], runs: int, root: Path) -> dict[str, Any]:
    """Return all results, including every sample."""
    source, out = root / "source", root / "out"
    nbytes = make_source(source, gigabytes)
    samples: list[dict[str, Any]] = []
    for run in range(runs):
        quantizing, read = measure_quantizing(), measure_read(source)
        untouched, touched = (
            measure_write(root / "probe", nbytes // 2) for _ in range(2)
        )  # FP8 output has half the size
        (root / "probe").unlink()
        rates = {"quantizing": quantizing, "read": read, "write_untouched": untouched, "write_touched": touched}
        for cold, fresh in ((True, True), (True, False), (False, False)):
            if fresh:
                shutil.rmtree(out, ignore_errors=True)
            (forget if cold else remember)(source)
            seconds, peak = run_side("trtspec", source, out)
            written = sum(path.stat().st_size for path in out.iterdir())
            limit = limit_of(quantizing, read, untouched if fresh else touched, written / nbytes, cold=cold)
            rate = nbytes / seconds
            kind = {"run": run, "cold": cold, "fresh": fresh, "limit": limit, **rates}
            samples.append({**kind, "seconds": seconds, "peak_bytes": peak, "rate": rate, "of_limit": rate / limit})
            say(samples[-1])
    remember(source)
    loops = [
        run_side("rank-loop", source, out) for _ in range(2)
    ]  # the second writes to used blocks with the source cached
    print(f"rank loop: {nbytes / loops[-1][0] / 1e9:.2f} GB/s, peak {loops[-1][1] / 1e9:.2f} GB", file=sys.stderr)
    shutil.rmtree(source), shutil.rmtree(out)
    return {
        "source_bytes": nbytes,
        "samples": samples,
        "rank_loop": [{"seconds": seconds, "rate": nbytes / seconds, "peak_bytes": peak} for seconds, peak in loops],
        "modelopt": measure_modelopt(root),
        "memory": [measure_memory(root, size) for size in (2, 32)],
        "planning": measure_planning(root),
        "whole": measure_sizes(root / "whole", sizes, runs, ENCODINGS, TENSOR),
    }


def measure_modelopt(root: Path) -> dict[str, Any]:
    """Return the exporter's rate on two layers and the vocabulary, which fit into memory."""
    source, out = root / "small", root / "small-out"
    nbytes = make_source(source, 3.0)
    seconds, peak = run_side("modelopt", source, out)
    shutil.rmtree(source), shutil.rmtree(out)
    print(f"modelopt: {nbytes / seconds / 1e9:.2f} GB/s, peak {peak / 1e9:.2f} GB", file=sys.stderr)
    return {"source_bytes": nbytes, "seconds": seconds, "rate": nbytes / seconds, "peak_bytes": peak}


def measure_memory(root: Path, gigabytes: int) -> dict[str, Any]:
    """Return the peak memory of converting a sparse source of that size."""
    source, out = root / f"sparse{gigabytes}", root / "sparse-out"
    nbytes = make_source(source, gigabytes, sparse=True)
    seconds, peak = run_side("trtspec", source, out)
    shutil.rmtree(source), shutil.rmtree(out)
    print(f"sparse {nbytes / 1e9:.1f} GB: peak {peak / 1e6:.0f} MB, {seconds:.1f} s", file=sys.stderr)
    return {"source_bytes": nbytes, "peak_bytes": peak, "seconds": seconds}


RECIPE = """\
schema: trtspec.recipe/1
name: headers
target:
  model: ./headers
  quantization: {weights: fp8, kv_cache: fp8}
  parallel: {tensor: 8, pipeline: 2}
"""


def measure_planning(root: Path, runs: int = 7) -> dict[str, list[float]]:
    """Return the seconds of `check` and `plan` on a 405B model's headers."""
    make_headers(root / "headers")
    (root / "headers.yaml").write_text(RECIPE)
    environment = {**os.environ, "TRTSPEC_CACHE": str(root / "cache")}
    found: dict[str, list[float]] = {"check": [], "plan": []}
    for command, samples in [pair for _ in range(runs) for pair in found.items()]:
        started = time.perf_counter()
        line = [sys.executable, "-m", "trtspec", command, str(root / "headers.yaml"), "--json"]
        subprocess.run(
            line, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3600
        )
        samples.append(time.perf_counter() - started)
    shutil.rmtree(root / "headers")
    print(", ".join(f"{name} {statistics.median(each):.2f} s" for name, each in found.items()), file=sys.stderr)
    return found


def say(sample: dict[str, Any]) -> None:
    """Print a sample as soon as it is measured."""
    where = f"{'cold' if sample['cold'] else 'cached'} source, {'new' if sample['fresh'] else 'rewritten'} files"
    rate, limit, share = sample["rate"] / 1e9, sample["limit"] / 1e9, sample["of_limit"]
    print(
        f"{where}: {rate:.2f} of {limit:.2f} GB/s ({share:.0%}), peak {sample['peak_bytes'] / 1e6:.0f} MB",
        file=sys.stderr,
    )


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    """Return the medians used in claims."""
    kinds = {}
    for name, cold, fresh in (
        ("cold_new", True, True),
        ("cold_rewritten", True, False),
        ("cached_rewritten", False, False),
    ):
        chosen = [sample for sample in found["samples"] if (sample["cold"], sample["fresh"]) == (cold, fresh)]
        kinds[name] = {key: statistics.median(each[key] for each in chosen) for key in ("rate", "limit", "of_limit")}
    ratio = found["rank_loop"][-1]["seconds"] / statistics.median(
        sample["seconds"] for sample in found["samples"] if not sample["cold"]
    )
    exporter = kinds["cached_rewritten"]["rate"] / found["modelopt"]["rate"]
    planning = {f"{name}_s": statistics.median(samples) for name, samples in found["planning"].items()}
    builds = summarize_builds(found["whole"])
    return {**kinds, "times_rank_loop": ratio, "times_modelopt": exporter, **planning, "builds": builds}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.2)
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 4, 8, 32], help="of whole builds, in GB")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side_main(arguments.side[0], Path(arguments.side[1]), Path(arguments.side[2]))
        return
    with workplace() as root:
        found = measure(arguments.gigabytes, arguments.sizes, arguments.runs, root)
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__,
               "torch": version("torch"), "modelopt": version("nvidia-modelopt")}  # fmt: skip
    document = {"machine": machine, "summary": summarize(found), **found}
    print(json.dumps(document["summary"], indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
