# SPDX-License-Identifier: Apache-2.0
"""Compare the predictions of `trtspec profile --server` with measurements on a real vLLM.

    TRTSPEC_VLLM=.venv-vllm python benchmarks/predicted.py --out FILE.json [--methods draft_target ngram eagle3]
        [--lens 1 2 4 6 8 10] [--batches 1 4 16] [--rounds 8] [--profiles 3]

Claim: speed-ups of draft_len 1 to 10 at concurrency 1, 4 and 16 are predicted within 15 %, from servers that draft 10
tokens, one and none. Uses the quickstart pair on a CPU in float32. A predicted speed-up is compared with `trtspec
bench` of a server with that length and one without drafts, in alternating rounds, independently of the prediction. The
lengths that the profile chooses are measured too. The median of several profiles counts, and the choice of the last
one. Each length is saved to FILE when it is measured, and lengths in FILE are not measured again. A length takes three
minutes, a profile six: 70 minutes for one of each for three methods.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import environment
from benchmarks.vllm_front import serving
from trtspec.backends.vllm.artifact import MODEL_JSON, relocate
from trtspec.core.paths import recipes_dir

RECIPES = {"draft_target": "quickstart", "ngram": "quickstart-ngram", "eagle3": "quickstart-eagle3"}
MOST, TOKENS, WITHIN, WITHIN_S = 10, 64, 0.15, 1800.0
VLLM = ("engine.backend=vllm", "engine.device=cpu", "target.dtype=float32", f"speculation.draft_len={MOST}")
SHORT = 1  # draft length of the second server
LEAST, A_PLACE = 32, 4  # minimum requests of an arm per round, in total and per concurrent request
LEAST_ROUNDS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=RECIPES, default=[*RECIPES])
    parser.add_argument("--lens", nargs="+", type=int, default=[1, 2, 4, 6, 8, 10])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=8, help="maximum rounds of each length and load")
    parser.add_argument("--profiles", type=int, default=1, help="total profiles of each method in FILE")
    parser.add_argument("--num-prompts", type=int, default=64, help="prompts of the profile; bench uses all 64")
    asked = parser.parse_args()
    document = json.loads(asked.out.read_text()) if asked.out.exists() else {"methods": {}, "machine": environment()}
    with TemporaryDirectory() as place:
        for method in asked.methods:
            found = document["methods"].setdefault(method, {"measured": {}})
            for _ in measured(method, found, asked, Path(place) / method):
                found["rows"] = rows(found)
                found["largest_error"] = max((row["error"] for row in found["rows"]), default=None)
                save(document, asked.out)
    print(json.dumps(document, indent=1))


def save(document: dict[str, Any], path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def measured(method: str, found: dict[str, Any], asked: argparse.Namespace, root: Path) -> Iterator[None]:
    """Measure a method's missing results, and yield after each part that can be evaluated."""
    predictions = found.setdefault("predictions", [])
    if len(predictions) >= asked.profiles and not lacking(found, asked):
        return
    arguments = vllm_arguments(method, root)
    with serving(written(arguments, root, 0)) as alone:
        while len(predictions) < asked.profiles:
            with serving(written(arguments, root, MOST)) as most, serving(written(arguments, root, SHORT)) as short:
                predictions.append(predicted(method, (most, short), alone, asked))
            yield
        for length in lacking(found, asked):
            with serving(written(arguments, root, length)) as drafting:
                found["measured"][str(length)] = {
                    str(batch): benched(drafting, alone, batch, asked) for batch in asked.batches
                }
            yield


def lacking(found: dict[str, Any], asked: argparse.Namespace) -> list[int]:
    """Return the lengths that are not measured yet: the requested ones and the chosen ones."""
    wanted = {*asked.lens, *found["predictions"][-1]["best"].values()}
    return sorted(length for length in wanted if str(length) not in found["measured"])


def vllm_arguments(method: str, root: Path) -> dict[str, Any]:
    """Return a deployment's vLLM arguments for the maximum draft length."""
    sets = [part for key in VLLM for part in ("--set", key)]
    trtspec("build", recipes_dir() / f"{RECIPES[method]}.yaml", "--out", root / "artifact", *sets)
    relocate(root / "artifact" / "model_repository", root / "repository", str(root / "artifact"))
    return dict(json.loads((root / "repository" / MODEL_JSON).read_text()))


def written(arguments: dict[str, Any], root: Path, draft_len: int) -> Path:
    """Write the arguments of a server with that draft length."""
    drafts = {**arguments["speculative_config"], "num_speculative_tokens": draft_len}
    changed = {**arguments, "speculative_config": drafts}
    if not draft_len:
        del changed["speculative_config"]
    path = root / f"{draft_len}.json"
    path.write_text(json.dumps(changed))
    return path


def predicted(method: str, drafting: Sequence[str], alone: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the speed-ups that a profile of the servers expects, by concurrency and draft length."""
    sets = ("--set", f"engine.max_batch_size={max(asked.batches)}", "--set", f"speculation.draft_len={MOST}")
    limits = ("--num-prompts", asked.num_prompts, "--max-tokens", TOKENS, "--max-draft-len", MOST)
    servers = [part for url in drafting for part in ("--server", url)]
    document = trtspec("profile", recipes_dir() / f"{RECIPES[method]}.yaml", *servers, "--baseline", alone,
                       "--prompts", "quickstart", *limits, *sets)  # fmt: skip
    [profile] = document["methods"]
    speedups: dict[str, dict[str, float]] = {}
    for each in profile["speedups"]:
        speedups.setdefault(str(each["batch"]), {})[str(each["draft_len"])] = each["speedup"]
    best = {str(each["batch"]): each["draft_len"] for each in profile["best"]}
    return {"speedups": speedups, "best": best, "mean_accepted_lens": profile["mean_accepted_lens"],
            "speeds": document["server"]["speeds"]}  # fmt: skip


def benched(drafting: str, alone: str, batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the measured speed-up with its interval, and the mean accepted length."""
    rounds = ("--runs", min(LEAST_ROUNDS, asked.rounds), "--max-rounds", asked.rounds)
    document = trtspec("bench", drafting, "--baseline", alone, "--concurrency", batch, "--prompts", "quickstart",
                       "--requests", max(LEAST, A_PLACE * batch), "--max-tokens", TOKENS, *rounds)  # fmt: skip
    [point] = document["points"]
    same = point["identical_texts"]
    return {**point["speedup"], "mean_accepted_len": point["arms"]["served"]["mean_accepted_len"],
            "same_texts": f"{same['same']} of {same['compared']}", "noise": document["noise"]["spread"]}  # fmt: skip


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return predicted and measured speed-ups by concurrency, and the quality of the profile's chosen length."""
    lens = sorted(found["measured"], key=int)
    told = []
    for batch, expected in expectations(found).items():
        seen = {length: found["measured"][length][batch]["ratio"] for length in lens
                if batch in found["measured"][length]}  # fmt: skip
        if not seen:
            continue
        errors = {length: abs(expected[length] / ratio - 1) for length, ratio in seen.items()}
        best, chosen = max(seen.values()), str(found["predictions"][-1]["best"][batch])
        told.append({
            "batch": int(batch), "predicted": {length: expected[length] for length in seen}, "measured": seen,
            "error": round(max(errors.values()), 3), "within": max(errors.values()) <= WITHIN, "chosen": int(chosen),
            "chosen_of_best": round(seen[chosen] / best, 3) if chosen in seen else None,
        })  # fmt: skip
    return told


def expectations(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the expected speed-ups by concurrency and draft length: the medians of all profiles."""
    speedups = [each["speedups"] for each in found["predictions"]]
    return {
        batch: {
            length: round(statistics.median(each[batch][length] for each in speedups), 3)
            for length in speedups[-1][batch]
        }
        for batch in speedups[-1]
    }


def trtspec(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "trtspec", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    print(f"{' '.join(map(str, arguments[:2]))} {arguments[2]}", file=sys.stderr, flush=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
