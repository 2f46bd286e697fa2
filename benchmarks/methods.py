# SPDX-License-Identifier: Apache-2.0
"""Compare all methods with the target alone on the quickstart target, on a CPU at batch 1.

    python benchmarks/method_nets.py --out NETS
    python benchmarks/methods.py [--nets NETS] [--runs 3] [--max-tokens 64] [--methods ngram medusa] [--out FILE.json]

Claims: draft_target, medusa, eagle3 and, on repetitive prompts, ngram are faster than the target alone on the same
engine; every method generates the target's text; at most 15 % of a step's time is outside the models' forward passes;
with the draft length chosen by `trtspec profile`, no method is slower than the target alone on any kind of prompt
(block_drafting.py compares methods).

Each method's recipe (recipes/quickstart-*.yaml, or the quickstart's with a net of NETS) is built. Each prompt is
answered alternately without and with speculation on one engine; the speed-up is the median over these pairs. The chosen
draft length is measured the same way: for each kind of prompt, the length with the highest expected speed at batch 1,
from drafts replayed on that kind's texts and step times; 0 (no drafts) if none is certain to pay. Without NETS, methods
that need a net are skipped. `suffix` does not cache responses, because the prompts repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from machine import environment

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "recipes"
PROMPTS = {"": RECIPES / "prompts" / "quickstart.jsonl", "repetitive": RECIPES / "prompts" / "repetitive.jsonl"}
RECIPES_OF = dict.fromkeys(("draft_target", "pard", "p_eagle", "dflash"), "quickstart")
NETS = ("pard", "p_eagle", "dflash")
SURE = {
    f"{method}, by confidence": method for method in ("p_eagle", "dflash", "dspark")
}  # stops drafting at low confidence
FORGETTING = {"suffix": {"options.max_cached_requests": 0}}  # prompts repeat, so a cache would contain each response
# From 0.2, stopping early costs more than it saves at batch 1 (benchmarks/experiments/block-drafting.md).
CONFIDENCE = 0.1
METHODS = (
    "draft_target",
    "ngram",
    "suffix",
    "lookahead",
    "medusa",
    "eagle",
    "eagle3",
    "redrafter",
    "swift",
    "dspark",
    *NETS,
    *SURE,
)
WHY = {
    "lookahead": "a step verifies {draft_tokens} tokens, which costs a CPU nearly as many times as much as one",
    "swift": "the skipped model still costs most of the target's step",
}


def prompts_by_kind() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, path in PROMPTS.items():
        for line in path.read_text().splitlines():
            prompt = json.loads(line)
            found.setdefault(name or prompt["kind"], []).append(prompt["prompt"])
    return found


def build(name: str, nets: Path | None, out: Path) -> None:
    """Build a method's recipe with the command."""
    method = SURE.get(name, name)
    recipe = RECIPES / f"{RECIPES_OF.get(method, f'quickstart-{method}')}.yaml"
    sets: dict[str, Any] = {"confidence": CONFIDENCE} if name in SURE else dict(FORGETTING.get(method, {}))
    if method in NETS and nets:
        sets |= {"method": method, "draft.model": (nets / method).absolute(), "draft_len": 7}
    overrides = [part for key, value in sets.items() for part in ("--set", f"speculation.{key}={value}")]
    command = [sys.executable, "-m", "trtspec", "build", str(recipe), "--out", str(out), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def measure(root: Path, prompts: dict[str, list[str]], runs: int, max_tokens: int) -> dict[str, Any]:
    from trtspec.bench.artifact import open_artifact
    from trtspec.bench.bench import measure_engine
    from trtspec.engine.generation.request import SamplingOptions

    lens = {kind: chosen_len(root, kind, texts, max_tokens) for kind, texts in prompts.items()}
    with open_artifact(root) as artifact:
        draft_shape = artifact.engine.speculator.draft_shape
        kinds = {}
        for kind, texts in prompts.items():
            compared, _ = measure_engine(artifact, texts, max_tokens, runs)
            kinds[kind] = compared.as_dict() | {"steps": compared.speculative.stats.steps}
            kinds[kind]["chosen"] = lens[kind] | chosen_speedup(artifact, texts, max_tokens, lens[kind]["draft_len"])
        return {
            "draft_tokens": draft_shape.max_tokens,
            "draft_len": draft_shape.max_depth,
            "options": dict(artifact.recipe.speculation.options),
            "kinds": kinds,
            "overhead": {
                name: overhead(artifact, [text for texts in prompts.values() for text in texts[:4]], max_tokens, how)
                for name, how in (("greedy", SamplingOptions()), ("sampled", SamplingOptions(1.0, seed=1)))
            },
        }


def chosen_len(root: Path, kind: str, texts: list[str], max_tokens: int) -> dict[str, Any]:
    """Return the draft length expected to be fastest for one request, 0 if none is certain to pay.

    Uses separate processes, because a second engine in one process slows the first.
    """
    from trtspec.bench.artifact import open_artifact
    from trtspec.bench.profile.candidates import ProfileCandidate
    from trtspec.bench.profile.engine_profiler import generate_responses, measure
    from trtspec.bench.profile.recommend import PAYS
    from trtspec.engine.prompts.prompt import Prompt
    from trtspec.store.artifact import load_manifest

    speculation = load_manifest(root).recipe.speculation
    asked = [Prompt(text, str(number), kind) for number, text in enumerate(texts)]
    with open_artifact(root) as artifact:
        said, _ = generate_responses(artifact, asked, max_tokens, lambda what, done, total: None)
    candidate = ProfileCandidate(speculation.method, None, dict(speculation.options), True, root)
    best = measure(candidate, said, (1,), lambda what, done, total: None).best(1)
    expected = best.expected
    return {"draft_len": best.draft_len if expected.low >= PAYS else 0, "expected": expected.as_list()}


def chosen_speedup(artifact: Any, texts: list[str], max_tokens: int, draft_len: int) -> dict[str, float]:
    """Return the speed-up over the target alone with that draft length; for 0 both are the same."""
    if draft_len == 0:
        return {"speedup": 1.0}
    ratios = []
    for text in texts:
        seconds = []
        for length in (0, draft_len):
            request = artifact.request(text, max_tokens, draft_len=length)
            started = time.perf_counter()
            artifact.engine.generate([request])
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[0] / seconds[1])
    return {"speedup": round(statistics.median(ratios), 3)}


def overhead(artifact: Any, texts: list[str], max_tokens: int, sampling: Any) -> dict[str, float]:
    """Return the median milliseconds of a step, and the share of its time outside the models' forward passes.

    A step is the time between two target passes: drafting, verification, bookkeeping. Forward passes include the
    target, draft models, heads and nets.
    """
    steps: list[float] = []
    inside: list[float] = []
    with timed_forwards() as spent, timed_steps(steps, inside, spent):
        for text in texts:
            artifact.engine.generate([artifact.request(text, max_tokens, sampling)])
    return {
        "step_ms": round(1000 * statistics.median(steps), 3),
        "forward_ms": round(1000 * statistics.median(inside), 3),
        "outside_share": round(1 - sum(inside) / sum(steps), 4),
    }


@contextmanager
def timed_steps(steps: list[float], inside: list[float], spent: Callable[[], float]) -> Iterator[None]:
    from trtspec.engine.engine import Engine

    decode = Engine._decode

    def timed(engine: Engine) -> None:
        before, started = spent(), time.perf_counter()
        decode(engine)
        steps.append(time.perf_counter() - started)
        inside.append(spent() - before)

    Engine._decode = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Engine._decode = decode  # type: ignore[method-assign]


@contextmanager
def timed_forwards() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent in forward passes so far; nested passes count once."""
    from trtspec.engine.drafting.feature_drafters import FeatureHead
    from trtspec.engine.model.decoder import Decoder
    from trtspec.methods.dflash.drafter import BlockNetwork
    from trtspec.methods.medusa.drafter import HeadStack
    from trtspec.methods.redrafter.drafter import RecurrentNet

    total, depth = 0.0, 0

    def timing(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            nonlocal total, depth
            depth += 1
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                depth -= 1
                total += 0 if depth else time.perf_counter() - started

        return timed

    places: list[tuple[type, tuple[str, ...]]] = [
        (Decoder, ("forward_with_features",)),
        (HeadStack, ("logits",)),
        (RecurrentNet, ("advance", "logits")),
    ]
    places.append((BlockNetwork, ("take_in", "forward")))
    places += [(kind, ("fuse", "forward", "logits")) for kind in FeatureHead.__subclasses__()]
    kept = [(owner, name, getattr(owner, name)) for owner, names in places for name in names]
    for owner, name, function in kept:
        setattr(owner, name, timing(function))
    try:
        yield lambda: total
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        f"{'method':<23}{'prompts':<12}{'acceptance':>11}{'mean len':>10}{'tokens/s':>10}{'alone':>8}{'speed-up':>10}"
        f"{'same text':>11}{'chosen':>8}{'speed-up':>10}{'outside':>9}{'sampled':>9}"
    ]
    for method, result in results.items():
        for kind, found in result.get("kinds", {}).items():
            ours = found["speculative"]
            lines.append(
                f"{method:<23}{kind:<12}{ours['acceptance_rate']:>11.3f}{ours['mean_accepted_len']:>10.2f}"
                f"{ours['median_tokens_per_s']:>10.0f}{found['baseline']['median_tokens_per_s']:>8.0f}"
                f"{found['speedup']:>9.2f}x{found['identical_texts']:>6}/{found['prompts']:<4}"
                f"{found['chosen']['draft_len']:>8}{found['chosen']['speedup']:>9.2f}x"
                + "".join(f"{share['outside_share']:>9.1%}" for share in result["overhead"].values())
            )
        if "why" in result:
            lines.append(f"{method:<23}{result['why']}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--nets", type=Path, help="output directory of benchmarks/method_nets.py")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    prompts, results = prompts_by_kind(), {}
    with TemporaryDirectory() as work:
        for method in arguments.methods:
            if SURE.get(method, method) in NETS and not arguments.nets:
                continue
            root = Path(work) / method.replace(", ", "-").replace(" ", "-")
            build(method, arguments.nets, root)
            results[method] = found = measure(root, prompts, arguments.runs, arguments.max_tokens)
            if any(kind["speedup"] < 1 for kind in found["kinds"].values()) and method in WHY:
                found["why"] = WHY[method].format(**found)
            print("\n".join(table({method: found})), file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    if arguments.out:
        document = {"claim": " ".join((__doc__ or "").split("\n\n")[0].split()), "methods": results}
        document["environment"] = environment() | {"runs": arguments.runs, "max_tokens": arguments.max_tokens}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
