# SPDX-License-Identifier: Apache-2.0
"""How fast a checkpoint is converted to FP8 for four ranks, and in how much memory, against what the machine allows.

In one run, on files it makes itself (layers of Llama 3 8B's shape, random bfloat16 weights):

* trtspec, with every byte on the disk at the end: source cold or in the page cache, output on disk blocks that were
  written before or never (a thinly provisioned disk makes the first write of a block several times slower)
* a rank loop as in TensorRT-LLM's examples: for each rank open all shards, cut its slices, quantize with torch, save
* NVIDIA's exporter (nvidia-modelopt) on a model of the same shape that it can hold in memory, quantized before the
  clock starts
* the limit: the smaller of two measured rates, table lookups on all cores (every weight needs one) and the disk (every
  input byte that is cold is read, every output byte is written)
* the peak memory of the converting process at 2 GB and at 32 GB of input (sparse files)
* `check` and `plan`, each in a process of its own, on the headers of a 405B model in 190 shards

    python benchmarks/convert.py [--gigabytes 8] [--runs 3] [--out benchmarks/results/convert.json]
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from machine import cpu_name

from trtspec.checkpoint.safetensors import lay_out

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
HIDDEN, INTERMEDIATE, KEYS, VOCABULARY = 4096, 14336, 1024, 128256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "model_type": "llama",
}
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
NORMS = ("input_layernorm", "post_attention_layernorm")
BLOCK_BYTES = 64 << 20


# ---- the source ----


def make_headers(root: Path) -> None:
    """Write the headers of Llama 3.1 405B in 190 sparse shards, with a tokenizer."""
    hidden, inter, keys, layers, shards = 16384, 53248, 1024, 126, 190
    shapes = dict(zip(LINEARS, ((hidden, hidden), (keys, hidden), (keys, hidden), (hidden, hidden), (inter, hidden),
                                (inter, hidden), (hidden, inter)), strict=True))  # fmt: skip
    tensors = [("model.embed_tokens.weight", (VOCABULARY, hidden)), ("lm_head.weight", (VOCABULARY, hidden))]
    for layer in range(layers):
        tensors += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items()]
        tensors += [(f"model.layers.{layer}.{name}.weight", (hidden,)) for name in NORMS]
    tensors.append(("model.norm.weight", (hidden,)))
    root.mkdir(parents=True)
    sizes = {"hidden_size": hidden, "intermediate_size": inter, "num_attention_heads": 128, "num_hidden_layers": layers}
    (root / "config.json").write_text(json.dumps(CONFIG | sizes))
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
    for path in (ROOT / "recipes" / "models" / "quickstart-target").glob("tokenizer*"):
        shutil.copy(path, root)


def make_source(root: Path, gigabytes: float, *, sparse: bool = False) -> int:
    """Write a checkpoint of about that size, one shard a layer; return its bytes."""
    layer_bytes = 2 * sum(rows * columns for rows, columns in LINEARS.values())
    layers = max(1, round((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / layer_bytes))
    shards = [[("model.embed_tokens.weight", (VOCABULARY, HIDDEN)), ("lm_head.weight", (VOCABULARY, HIDDEN)),
               ("model.norm.weight", (HIDDEN,))]]  # fmt: skip
    for layer in range(layers):
        weights = [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in LINEARS.items()]
        shards.append([*weights, *((f"model.layers.{layer}.{name}.weight", (HIDDEN,)) for name in NORMS)])
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    noise = np.random.default_rng(0).standard_normal(BLOCK_BYTES // 2, dtype=np.float32) * np.float32(0.02)
    block = memoryview((noise.view(np.uint32) >> 16).astype(np.uint16).data).cast("B")
    total, weight_map = 0, {}
    for number, tensors in enumerate(shards):
        name = f"model-{number:05}.safetensors"
        layout = lay_out((tensor, "BF16", shape) for tensor, shape in tensors)
        with (root / name).open("wb") as file:
            file.write(layout.header)
            if sparse:
                file.truncate(layout.nbytes)
            while not sparse and file.tell() < layout.nbytes:
                file.write(block[: min(len(block), layout.nbytes - file.tell())])
        total += layout.nbytes - len(layout.header)
        weight_map |= {tensor: name for tensor, _ in tensors}
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    os.sync()
    return total


def forget(root: Path) -> None:
    """Drop a directory's files from the page cache."""
    for path in root.glob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(root: Path) -> None:
    """Read a directory's files, so that they are in the page cache as far as it holds them."""
    buffer = bytearray(BLOCK_BYTES)
    for path in root.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


# ---- what is timed; each side runs in a process of its own ----


def convert_ours(source: Path, out: Path) -> None:
    """Convert with trtspec; the journal has every byte on the disk before it returns."""
    from trtspec.checkpoint.sharding import ParallelMapping
    from trtspec.quant.activations import Activations
    from trtspec.quant.scheme import Scheme
    from trtspec.steps.convert import convert_checkpoint

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


def convert_by_rank(source: Path, out: Path) -> None:
    """Convert as a plain loop over ranks does: torch and safetensors, a rank in memory, all sources read for each."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    config = json.loads((source / "config.json").read_text())
    out.mkdir(exist_ok=True)

    def columns(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor.chunk(RANKS, 0)[rank]

    def rows(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        return tensor.chunk(RANKS, 1)[rank]

    for rank in range(RANKS):
        files = {name: safe_open(source / name, "pt") for name in set(index.values())}
        done: dict[str, torch.Tensor] = {}

        def load(name: str, files: dict[str, Any] = files) -> torch.Tensor:
            return files[index[name]].get_tensor(name)

        def quantize(target: str, parts: list[torch.Tensor], cut: Callable[[torch.Tensor, int], torch.Tensor],
                     scale: torch.Tensor, rank: int = rank, done: dict[str, torch.Tensor] = done) -> None:  # fmt: skip
            whole = torch.cat([cut(part, rank) for part in parts])
            done[f"{target}.weight"] = (whole.float() / scale).to(torch.float8_e4m3fn).contiguous()
            done[f"{target}.weights_scaling_factor"] = scale.reshape(1)

        def scale_of(parts: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack([part.abs().amax() for part in parts]).amax().float() / 448.0

        done["transformer.vocab_embedding.weight"] = columns(load("model.embed_tokens.weight"), rank).contiguous()
        done["lm_head.weight"] = columns(load("lm_head.weight"), rank).contiguous()
        done["transformer.ln_f.weight"] = load("model.norm.weight")
        for layer in range(config["num_hidden_layers"]):
            here, there = f"model.layers.{layer}", f"transformer.layers.{layer}"
            qkv = [load(f"{here}.self_attn.{name}_proj.weight") for name in "qkv"]
            quantize(f"{there}.attention.qkv", qkv, columns, scale_of(qkv))
            gate, up = load(f"{here}.mlp.gate_proj.weight"), load(f"{here}.mlp.up_proj.weight")
            for target, tensor in (("fc", gate), ("gate", up)):
                quantize(f"{there}.mlp.{target}", [tensor], columns, scale_of([gate, up]))
            for target, name in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
                tensor = load(f"{here}.{name}.weight")
                quantize(f"{there}.{target}", [tensor], rows, scale_of([tensor]))
            done[f"{there}.input_layernorm.weight"] = load(f"{here}.input_layernorm.weight")
            done[f"{there}.post_layernorm.weight"] = load(f"{here}.post_attention_layernorm.weight")
        path = out / f"rank{rank}.safetensors"
        save_file(done, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def convert_by_modelopt(source: Path, out: Path) -> float:
    """Export with NVIDIA's exporter; the clock runs for the export alone, not for loading and calibrating."""
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from modelopt.torch.quantization import FP8_DEFAULT_CFG, quantize
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.config.architectures = CONFIG["architectures"]
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
    """Run a side in a process of its own; return (seconds, peak memory in bytes)."""
    command = [sys.executable, __file__, "--side", side, str(source), str(out)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3600)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["peak_bytes"]


def side_main(side: str, source: Path, out: Path) -> None:
    """What that process does."""
    started = time.perf_counter()
    seconds = SIDES[side](source, out)
    total = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    print(json.dumps({"seconds": seconds or total, "peak_bytes": peak}))


# ---- the limit ----


def measure_lookups(nbytes: int = 1 << 30) -> float:
    """Return the input bytes/s of table lookups (bfloat16 to one byte) on all cores, in memory the caches hold."""
    cores = os.cpu_count() or 1
    table = np.arange(1 << 16, dtype=np.uint16).astype(np.uint8)
    chunk = (np.random.default_rng(0).standard_normal(1 << 19, dtype=np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )

    def work(_: int) -> None:
        out = np.empty(len(chunk), np.uint8)
        for _ in range(nbytes // cores // chunk.nbytes):
            np.take(table, chunk, out=out, mode="clip")

    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(work, range(cores)))
    return nbytes / (time.perf_counter() - started)


def measure_read(root: Path, limit: int = 2 << 30) -> float:
    """Return the bytes/s of reading cold files with as many threads as a conversion has."""
    forget(root)
    paths = sorted(root.glob("model-*.safetensors"), key=lambda path: -path.stat().st_size)
    ranges = [(path, offset) for path in paths for offset in range(0, path.stat().st_size, BLOCK_BYTES)]
    ranges = ranges[: limit // BLOCK_BYTES]

    def work(each: tuple[Path, int]) -> int:
        with each[0].open("rb", buffering=0) as file:
            done = 0
            for offset in range(each[1], each[1] + BLOCK_BYTES, 1 << 20):
                done += len(os.pread(file.fileno(), 1 << 20, offset))
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        done = sum(pool.map(work, ranges))
    return done / (time.perf_counter() - started)


def measure_write(path: Path, nbytes: int = 2 << 30) -> tuple[float, float]:
    """Return the bytes/s of writing and syncing a new file, and of writing it once more."""
    block = os.urandom(1 << 20)
    rates = []
    for _ in range(2):
        started = time.perf_counter()
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            for offset in range(0, nbytes, len(block)):
                os.pwrite(file.fileno(), block, offset)
            os.fsync(file.fileno())
        rates.append(nbytes / (time.perf_counter() - started))
    path.unlink()
    return rates[0], rates[1]


def limit_of(lookups: float, read: float, write: float, out_ratio: float, *, cold: bool) -> float:
    """Return the input bytes/s that lookups and the disk allow, whichever is less; a disk reads or writes."""
    disk = 1.0 / ((1.0 / read if cold else 0.0) + out_ratio / write)
    return min(lookups, disk)


# ---- the run ----


@contextmanager
def workplace() -> Iterator[Path]:
    """Give a directory on a disk, with room."""
    root = Path(tempfile.mkdtemp(prefix="convert-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def measure(gigabytes: float, runs: int, root: Path) -> dict[str, Any]:
    """Return everything, with every sample."""
    source, out = root / "source", root / "out"
    nbytes = make_source(source, gigabytes)
    samples: list[dict[str, Any]] = []
    for run in range(runs):
        lookups, read = measure_lookups(), measure_read(source)
        untouched, touched = measure_write(root / "probe")
        rates = {"lookups": lookups, "read": read, "write_untouched": untouched, "write_touched": touched}
        for cold, fresh in ((True, True), (True, False), (False, False)):
            if fresh:
                shutil.rmtree(out, ignore_errors=True)
            (forget if cold else remember)(source)
            seconds, peak = run_side("trtspec", source, out)
            written = sum(path.stat().st_size for path in out.iterdir())
            limit = limit_of(lookups, read, untouched if fresh else touched, written / nbytes, cold=cold)
            rate = nbytes / seconds
            kind = {"run": run, "cold": cold, "fresh": fresh, "limit": limit, **rates}
            samples.append({**kind, "seconds": seconds, "peak_bytes": peak, "rate": rate, "of_limit": rate / limit})
            say(samples[-1])
    remember(source)
    loops = [run_side("rank-loop", source, out) for _ in range(2)]  # the second on touched blocks, source cached
    print(f"rank loop: {nbytes / loops[-1][0] / 1e9:.2f} GB/s, peak {loops[-1][1] / 1e9:.2f} GB", file=sys.stderr)
    shutil.rmtree(source), shutil.rmtree(out)
    return {
        "source_bytes": nbytes,
        "samples": samples,
        "rank_loop": [{"seconds": seconds, "rate": nbytes / seconds, "peak_bytes": peak} for seconds, peak in loops],
        "modelopt": measure_modelopt(root),
        "memory": [measure_memory(root, size) for size in (2, 32)],
        "planning": measure_planning(root),
    }


def measure_modelopt(root: Path) -> dict[str, Any]:
    """Return the exporter's rate on two layers and the vocabulary, which it holds in memory."""
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
    """Show a sample while the others are made."""
    where = f"{'cold' if sample['cold'] else 'cached'} source, {'new' if sample['fresh'] else 'rewritten'} files"
    rate, limit, share = sample["rate"] / 1e9, sample["limit"] / 1e9, sample["of_limit"]
    print(
        f"{where}: {rate:.2f} of {limit:.2f} GB/s ({share:.0%}), peak {sample['peak_bytes'] / 1e6:.0f} MB",
        file=sys.stderr,
    )


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    """Return the medians that are claimed."""
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
    return {**kinds, "times_rank_loop": ratio, "times_modelopt": exporter, **planning}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side_main(arguments.side[0], Path(arguments.side[1]), Path(arguments.side[2]))
        return
    with workplace() as root:
        found = measure(arguments.gigabytes, arguments.runs, root)
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__,
               "torch": version("torch"), "modelopt": version("nvidia-modelopt")}  # fmt: skip
    document = {"machine": machine, "summary": summarize(found), **found}
    print(json.dumps(document["summary"], indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
