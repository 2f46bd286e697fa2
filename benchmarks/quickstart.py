# SPDX-License-Identifier: Apache-2.0
"""Compare speculation on the quickstart pair with the target alone and with transformers, on a CPU at batch 1.

    python benchmarks/quickstart.py [--runs 5] [--prompts 64] [--out FILE.json]

Claim: speculation is at least 1.5 times as fast as the target alone on the same engine, and faster than transformers'
assisted generation; all four texts are identical.

One run alternates between trtspec's engine without and with speculation (in this process), and transformers' greedy and
assisted generation (in a child process, because the threads of two engines in one process slow both down). The reported
limit is reading each weight once per step at the memory rate measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import environment

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "recipes" / "models"
PROMPTS = ROOT / "recipes" / "prompts" / "quickstart.jsonl"
DRAFT_LEN, MAX_TOKENS = 5, 64
SIDES = ("ours", "ours, speculative", "transformers", "transformers, assisted")


def prompt_texts(count: int) -> list[str]:
    return [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][:count]


class Ours:
    """The artifact of recipes/quickstart.yaml, at the default path of `trtspec build`."""

    def __init__(self, root: Path, texts: list[str]) -> None:
        from trtspec.bench.artifact import open_artifact

        self._opened = open_artifact(root)
        self.artifact = self._opened.__enter__()
        self.texts = texts

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    def run(self, draft_len: int | None) -> dict[str, Any]:
        requests = [self.artifact.request(text, MAX_TOKENS, draft_len=draft_len) for text in self.texts]
        started = time.perf_counter()
        results = [self.artifact.engine.generate([request])[0] for request in requests]
        seconds = time.perf_counter() - started
        counts = (sum(getattr(result.stats, key) for result in results) for key in ("drafted", "accepted", "steps"))
        drafted, accepted, steps = counts
        return {
            "seconds": seconds,
            "ids": [list(result.ids) for result in results],
            "acceptance_rate": accepted / drafted if drafted else None,
            "mean_accepted_len": 1 + accepted / steps,
        }


def serve_peer(count: int) -> None:
    """Answer each line on stdin ("plain" or "assisted") with a run of transformers, as JSON on stdout."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "quickstart-target")
    target, draft = (
        AutoModelForCausalLM.from_pretrained(MODELS / f"quickstart-{role}", dtype=torch.float32).eval()
        for role in ("target", "draft")
    )
    draft.generation_config.num_assistant_tokens = DRAFT_LEN
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    encoded = [tokenizer(text, return_tensors="pt") for text in prompt_texts(count)]
    for line in sys.stdin:
        assistant = {"assistant_model": draft} if line.strip() == "assisted" else {}
        started, ids = time.perf_counter(), []
        for inputs in encoded:
            with torch.inference_mode():
                out = target.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0, **assistant)
            new = out[0, inputs["input_ids"].shape[1] :].tolist()
            ids.append([token for token in new if token != tokenizer.eos_token_id])
        print(json.dumps({"seconds": time.perf_counter() - started, "ids": ids}), flush=True)


class Peer:
    """transformers in a child process."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, __file__, "--peer", "--prompts", str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def run(self, how: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(how + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def read_rate(nbytes: int) -> float:
    """Return the bytes/s at which one matrix-vector product reads `nbytes` of weights, the best of many."""
    import torch

    matrix, vector = torch.ones(nbytes // 4 // 1024, 1024), torch.ones(1024)
    samples = []
    for _ in range(50):
        started = time.perf_counter()
        torch.mv(matrix, vector)
        samples.append(time.perf_counter() - started)
    return nbytes / min(samples)


def step_ms(artifact: Path) -> dict[str, float]:
    """Return median milliseconds of the parts of speculation, measured in turn in each round.

    "draft" is one of the DRAFT_LEN steps of a proposal, "verify" the target's pass over the drafted tokens, "target" a
    one-token step of the target alone; each includes building its attention mask and choosing its tokens.
    """
    import torch

    from trtspec.checkpoints.trtllm import load_checkpoint
    from trtspec.engine.drafting.base import BatchShape, DrafterConfig
    from trtspec.engine.model.decoder import Decoder
    from trtspec.methods.base import DraftShape, find_method
    from trtspec.methods.draft_target.drafter import DraftModelDrafter

    device, text = torch.device("cpu"), list(range(1, 101))
    samples: dict[str, list[float]] = {"draft": [], "verify": [], "target": []}
    with torch.inference_mode():
        target = Decoder(load_checkpoint(artifact / "checkpoints" / "target"), 1, 256, device, torch.float32)
        room, options = BatchShape(1, 256, device, torch.float32), find_method("draft_target").parse({})
        draft_shape = DraftShape(DRAFT_LEN, DRAFT_LEN)
        drafter = DraftModelDrafter(
            DrafterConfig(target, artifact / "checkpoints" / "draft", room, options, draft_shape)
        )
        last = torch.tensor([text[-1:]])
        for _ in range(300):
            drafter.begin([text[:-1]], 0, len(text))
            times = [time.perf_counter()]
            tokens = torch.cat([last, drafter.propose([text], DRAFT_LEN, None).tokens], 1)
            times.append(time.perf_counter())
            target.forward(tokens, target.windows.chain([len(text) - 1], DRAFT_LEN + 1)).argmax(-1)
            times.append(time.perf_counter())
            target.forward(last, target.windows.chain([len(text) - 1], 1)).argmax(-1)
            times.append(time.perf_counter())
            for values, begin, end in zip(samples.values(), times, times[1:], strict=False):
                values.append(end - begin)
    milliseconds = {name: 1000 * statistics.median(values[20:]) for name, values in samples.items()}
    milliseconds["draft"] /= DRAFT_LEN
    return {name: round(value, 4) for name, value in milliseconds.items()}


def measure(artifact: Path, runs: int, count: int) -> dict[str, Any]:
    texts = prompt_texts(count)
    ours, peer = Ours(artifact, texts), Peer(count)
    sides = {
        "ours": lambda: ours.run(0),
        "ours, speculative": lambda: ours.run(None),
        "transformers": lambda: peer.run("plain"),
        "transformers, assisted": lambda: peer.run("assisted"),
    }
    for run in sides.values():
        run()
    samples: dict[str, list[float]] = {name: [] for name in SIDES}
    last: dict[str, dict[str, Any]] = {}
    for number in range(runs):
        for name, run in sides.items():
            last[name] = run()
            tokens = sum(map(len, last[name]["ids"]))
            samples[name].append(round(tokens / last[name]["seconds"], 1))
            print(f"run {number + 1}/{runs} {name}: {samples[name][-1]:.1f} tokens/s", file=sys.stderr)
    ours.close()
    peer.close()
    command = [sys.executable, __file__, "--steps", "--artifact", str(artifact)]
    steps = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600).stdout)
    return report(samples, last, steps)


def report(samples: dict[str, list[float]], last: dict[str, dict[str, Any]], steps: dict[str, float]) -> dict[str, Any]:
    sizes = {role: weight_bytes(role) for role in ("target", "draft")}
    rate = read_rate(sizes["target"])
    accepted = last["ours, speculative"]["mean_accepted_len"]
    medians = {name: statistics.median(values) for name, values in samples.items()}
    spread = {name: [min(values), max(values)] for name, values in samples.items()}
    limits = {
        "ours": rate / sizes["target"],
        "ours, speculative": accepted * rate / (sizes["target"] + DRAFT_LEN * sizes["draft"]),
    }
    return {
        "claim": "speculative >= 1.5 times ours alone, and faster than transformers' assisted generation",
        "tokens_per_s": samples,
        "median_tokens_per_s": medians,
        "min_max_tokens_per_s": spread,
        "speedup_over_ours": round(medians["ours, speculative"] / medians["ours"], 3),
        "speedup_over_assisted": round(medians["ours, speculative"] / medians["transformers, assisted"], 3),
        "acceptance_rate": round(last["ours, speculative"]["acceptance_rate"], 4),
        "mean_accepted_len": round(accepted, 3),
        "step_ms": steps,
        "draft_steps_in_a_target_step": round(steps["target"] / steps["draft"], 2),
        "identical_texts": {name: last[name]["ids"] == last["transformers"]["ids"] for name in SIDES},
        "limit_tokens_per_s": {name: round(limit, 1) for name, limit in limits.items()},
        "read_gb_per_s": round(rate / 1e9, 2),
        "environment": environment()
        | {
            "dtype": "float32",
            "batch": 1,
            "draft_len": DRAFT_LEN,
            "max_tokens": MAX_TOKENS,
            "prompts": len(last["ours"]["ids"]),
        },
    }


def weight_bytes(role: str) -> int:
    """Return the bytes of float32 weights that a step reads; only one row of an embedding that is not the head."""
    from trtspec.checkpoints.rules import find_family
    from trtspec.checkpoints.source import load_source

    source = load_source(MODELS / f"quickstart-{role}")
    config = find_family(source)[1].read(source.reader, "auto")
    looked_up = 0 if config.tied_embeddings else config.vocab_size * config.hidden_size
    return 4 * (config.num_parameters - looked_up)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, default=ROOT / "build" / "quickstart")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps:
        print(json.dumps(step_ms(arguments.artifact)))
        return
    if arguments.peer:
        serve_peer(arguments.prompts)
        return
    if not arguments.artifact.is_dir():
        sys.exit("build it first: trtspec build recipes/quickstart.yaml")
    text = json.dumps(measure(arguments.artifact, arguments.runs, arguments.prompts), indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
