# SPDX-License-Identifier: Apache-2.0
"""Compare the torch engine, vLLM and transformers on the quickstart pair, on a CPU at batch 1 in float32.

    TRTSPEC_VLLM=.venv-vllm python benchmarks/engines.py [--runs 3] [--prompts 8] [--out FILE.json]

Reports the speed of each, alone and with speculation, and for how many prompts the texts are identical. Each engine is
one process (this one for the torch engine, one per method for vLLM), loaded once. In each round all engines answer all
prompts, one at a time, one engine after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import environment
from quickstart import DRAFT_LEN, MAX_TOKENS, ROOT, Ours, Peer, prompt_texts

from trtspec.backends import vllm
from trtspec.backends.vllm.artifact import MODEL_JSON, relocate

Run = Callable[[], dict[str, Any]]
VLLM = tuple(f"--set={key}" for key in ("engine.backend=vllm", "engine.device=cpu", "target.dtype=float32"))
RECIPES = {"draft_target": "quickstart", "eagle3": "quickstart-eagle3"}


def build(recipe: str, out: Path, *options: str) -> Path:
    """Build a shipped recipe with the command and return the artifact's directory."""
    command = [sys.executable, "-m", "trtspec", "build", f"{ROOT}/recipes/{recipe}.yaml", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return out


class Vllm:
    """A vLLM process, started as by a deployment; processes load concurrently."""

    def __init__(self, arguments: Path, texts: list[str]) -> None:
        command = [str(vllm.find_vllm()), str(Path(vllm.__file__).with_name("worker.py")), str(arguments)]
        variables = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, env=variables, **pipes)
        self._texts = texts

    def ready(self) -> str:
        """Wait until it has loaded and return its version."""
        return str(self._read()["ready"])

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            sys.exit("vLLM exited; run `trtspec doctor` or `trtspec deploy` for details")
        return dict(json.loads(line))

    def _ask(self, text: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        sampling = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
        print(json.dumps({"id": text, "prompt": text, "sampling": sampling, "stream": False}), file=self._process.stdin)
        self._process.stdin.flush()
        return self._read()

    def run(self) -> dict[str, Any]:
        started = time.perf_counter()
        said = [self._ask(text) for text in self._texts]
        seconds = time.perf_counter() - started
        drafted, accepted, tokens = (sum(each[name] for each in said) for name in ("drafted", "accepted", "tokens"))
        rate = accepted / drafted if drafted else None
        return {
            "seconds": seconds,
            "tokens": tokens,
            "texts": [each["text"] for each in said],
            "acceptance_rate": rate,
        }


def spoken(ours: Ours, run: Run) -> Run:
    """Return a run with texts instead of ids."""

    def ran() -> dict[str, Any]:
        found = run()
        texts = [ours.artifact.tokenizer.decode(ids) for ids in found["ids"]]
        return found | {"texts": texts, "tokens": sum(map(len, found["ids"]))}

    return ran


def vllm_arguments(root: Path) -> dict[str, Path]:
    """Write vLLM's arguments by method, as a deployment does."""
    found = {}
    for method, recipe in RECIPES.items():
        artifact, staged = build(recipe, root / method, *VLLM), root / f"{method}-repository"
        relocate(artifact / "model_repository", staged, str(artifact))
        found[method] = staged / MODEL_JSON
    alone = json.loads(found["draft_target"].read_text())
    del alone["speculative_config"]
    found["none"] = root / "none.json"
    found["none"].write_text(json.dumps(alone))
    return found


def measure(root: Path, runs: int, count: int) -> dict[str, Any]:
    texts, arguments = prompt_texts(count), vllm_arguments(root)
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Ours(build("quickstart", root / "torch"), texts)))
        peer = stack.enter_context(closing(Peer(count)))
        theirs = {method: stack.enter_context(closing(Vllm(path, texts))) for method, path in arguments.items()}
        [version, *_] = [each.ready() for each in theirs.values()]
        sides: dict[str, Run] = {
            "torch engine": spoken(ours, lambda: ours.run(0)),
            "torch engine, draft_target": spoken(ours, lambda: ours.run(None)),
            "transformers": spoken(ours, lambda: peer.run("plain")),
            "transformers, assisted": spoken(ours, lambda: peer.run("assisted")),
            "vLLM": theirs["none"].run,
            "vLLM, draft_target": theirs["draft_target"].run,
            "vLLM, eagle3": theirs["eagle3"].run,
        }
        rounds = [one_round(sides) for _ in range(runs + 1)][1:]  # the first round is the warm-up
        versions = {"vllm": version, "prompts": count, "max_tokens": MAX_TOKENS, "draft_len": DRAFT_LEN}
    return report(rounds) | {"environment": environment() | versions | {"dtype": "float32", "batch": 1, "runs": runs}}


def one_round(sides: dict[str, Run]) -> dict[str, dict[str, Any]]:
    found = {}
    for name, run in sides.items():
        found[name] = run()
        print(f"{name}: {found[name]['tokens'] / found[name]['seconds']:.1f} tokens/s", file=sys.stderr, flush=True)
    return found


def report(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    expected = rounds[0]["transformers"]["texts"]
    engines = {name: summary([each[name] for each in rounds], expected) for name in rounds[0]}
    for name, found in engines.items():
        alone = engines[name.split(",")[0]]["median_tokens_per_s"]
        found["speedup"] = round(found["median_tokens_per_s"] / alone, 3)
    return {"facts": " ".join((__doc__ or "").split("\n\n")[0].split()), "engines": engines}


def summary(runs: list[dict[str, Any]], expected: list[str]) -> dict[str, Any]:
    """Return one engine's rates; a text counts as identical only if it is in every round."""
    rates = [round(run["tokens"] / run["seconds"], 1) for run in runs]
    same = [all(run["texts"][at] == text for run in runs) for at, text in enumerate(expected)]
    acceptance = runs[-1].get("acceptance_rate")
    return {
        "tokens_per_s": rates,
        "median_tokens_per_s": statistics.median(rates),
        "min_max_tokens_per_s": [min(rates), max(rates)],
        "acceptance_rate": acceptance and round(acceptance, 4),
        "identical_texts": sum(same),
    }


def table(document: dict[str, Any]) -> list[str]:
    lines = [f"{'engine':<28}{'tokens/s':>9}{'from':>8}{'to':>8}{'speed-up':>10}{'acceptance':>12}{'same text':>11}"]
    for name, found in document["engines"].items():
        low, high = found["min_max_tokens_per_s"]
        rate = "" if found["acceptance_rate"] is None else f"{found['acceptance_rate']:.3f}"
        lines.append(
            f"{name:<28}{found['median_tokens_per_s']:>9.1f}{low:>8.1f}{high:>8.1f}{found['speedup']:>9.2f}x{rate:>12}"
            f"{found['identical_texts']:>6}/{document['environment']['prompts']}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as root:
        document = measure(Path(root), arguments.runs, arguments.prompts)
    print("\n".join(table(document)))
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
