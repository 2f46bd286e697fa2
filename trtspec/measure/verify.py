# SPDX-License-Identifier: Apache-2.0
"""Proves that an artifact says what its target says, and that its gates hold.

The oracle for the text is the source model run by transformers: one pass over prompt and answer tells, for each
token, whether it is the model's own greedy choice after all that stands before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.artifacts.manifest import MANIFEST, verify_files
from trtspec.checkpoint.source import locate_model
from trtspec.engines.embedded.request import Result
from trtspec.errors import CheckpointError, GateNotMet, TrtspecError, VerificationFailed
from trtspec.measure.artifact import OpenArtifact, artifact_prompts, open_artifact
from trtspec.measure.bench import measure_engine

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
REPORT = "reports/verify.json"
# Two float32 implementations differ by about 1e-5 of a logit; a lead smaller than this decides nothing.
TIE = 1e-3
# What is measured before an unverified artifact is deployed.
DEPLOY_PROMPTS, DEPLOY_TOKENS = 16, 32

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Check:
    """One claim and whether it holds; `limit` is what `value` had to reach."""

    name: str
    ok: bool
    value: Any
    limit: Any
    detail: str


@dataclass(frozen=True)
class Verification:
    """All checks of an artifact, and the manifest they are about."""

    checks: tuple[Check, ...]
    manifest_sha256: str

    @property
    def ok(self) -> bool:
        """Return whether everything holds."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`."""
        checks = [asdict(check) for check in self.checks]
        return {"format_version": FORMAT_VERSION, "ok": self.ok, "checks": checks, "manifest": self.manifest_sha256}

    @property
    def failure(self) -> TrtspecError | None:
        """Return what is wrong: GateNotMet where only limits of the recipe are missed, else VerificationFailed."""
        failed = [check for check in self.checks if not check.ok]
        error = GateNotMet if all(check.name.startswith("min_") for check in failed) else VerificationFailed
        return error("; ".join(f"{check.name}: {check.detail}" for check in failed)) if failed else None


def verify_artifact(
    root: Path,
    *,
    source: Path | None = None,
    prompts_file: Path | None = None,
    max_tokens: int = 64,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Verification:
    """Check files, parity with the source model, losslessness and gates; writes the report into the artifact.

    `source` is where the target's Hugging Face checkpoint lies now, if not where it was built from. Raises
    TrtspecError where it cannot be found.
    """
    prompts = [prompt.text for prompt in artifact_prompts(root, prompts_file)]
    with open_artifact(root) as artifact:
        source = source or _recorded_source(artifact)
        checks = [_check_files(artifact)]
        results, gates = _check_gates(artifact, prompts, max_tokens, on_progress)
        checks += [_check_parity(artifact, source, prompts, results, on_progress), *gates]
    return _report(root, checks)


def ensure_gates(root: Path, on_progress: OnProgress = lambda what, done, total: None) -> None:
    """Raise unless the gates of an artifact hold: by its report, or where it has none by measuring them now.

    Raises VerificationFailed or GateNotMet. Needs no source model.
    """
    verification = _read_report(root)
    if verification is None:
        prompts = [prompt.text for prompt in artifact_prompts(root, None)][:DEPLOY_PROMPTS]
        with open_artifact(root) as artifact:
            checks = [_check_files(artifact)]
            checks += _check_gates(artifact, prompts, DEPLOY_TOKENS, on_progress)[1]
        verification = Verification(tuple(checks), _manifest_sha256(root))
    if failure := verification.failure:
        raise failure


def _check_files(artifact: OpenArtifact) -> Check:
    problems = verify_files(artifact.root, artifact.manifest)
    count = len(artifact.manifest.files)
    detail = "; ".join(problems[:3]) or f"{count} files have the digests that were recorded"
    return Check("files", not problems, count - len(problems), count, detail)


def _check_gates(
    artifact: OpenArtifact, prompts: Sequence[str], max_tokens: int, on_progress: OnProgress
) -> tuple[list[Result], list[Check]]:
    gates, speculates = artifact.recipe["gates"], artifact.recipe["speculation"]["method"] != "none"
    measured = measure_engine(artifact, prompts, max_tokens, runs=1, on_progress=on_progress)
    checks = []
    if gates["lossless"]:
        same, total = measured.identical_texts, len(prompts)
        detail = f"{same} of {total} texts are the same with and without speculation"
        checks.append(Check("lossless", same == total, same, total, detail))
    if speculates and gates["min_acceptance"]:
        rate, limit = measured.speculative.acceptance_rate, gates["min_acceptance"]
        detail = f"acceptance rate {rate:.3f}, at least {limit} is wanted"
        checks.append(Check("min_acceptance", rate >= limit, round(rate, 4), limit, detail))
    if speculates and gates["min_speedup"]:
        speedup, limit = measured.speedup, gates["min_speedup"]
        detail = f"{speedup:.2f} times the tokens/s without speculation, at least {limit} is wanted"
        checks.append(Check("min_speedup", speedup >= limit, round(speedup, 3), limit, detail))
    return measured.results, checks


def _recorded_source(artifact: OpenArtifact) -> Path:
    target = artifact.recipe["target"]
    try:
        return locate_model(target["model"], target["revision"] or None)
    except CheckpointError as error:
        raise TrtspecError(
            f"the source of the target is not on this machine: {error.message}",
            hint="say where it is with --source DIR",
        ) from None


def _check_parity(
    artifact: OpenArtifact, source: Path, prompts: Sequence[str], results: Sequence[Result], on_progress: OnProgress
) -> Check:
    """Hold every token against the source model's own choice at its place."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
    differences, ties = [], []
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        for place, chosen, lead, logits in _disagreements(artifact, model, prompt, result):
            text = (
                f"prompt {number} token {place}: logits {logits[0]:.6f} (source) and {logits[1]:.6f} (ours, {chosen})"
            )
            (ties if lead <= TIE else differences).append(text)
        on_progress("parity", number + 1, len(prompts))
    same = len(prompts) - len({text.split(" token")[0] for text in differences})
    detail = f"{same} of {len(prompts)} texts are what transformers says greedily with the source model"
    for name, found in (("differences", differences), ("numerical ties", ties)):
        detail += f"; {len(found)} {name}: " + ", ".join(found[:5]) if found else ""
    return Check("parity", not differences, same, len(prompts), detail)


def _disagreements(
    artifact: OpenArtifact, model: Any, prompt: str, result: Result
) -> list[tuple[int, int, float, tuple[float, float]]]:
    """Return (place, our token, the source's lead, both logits) wherever the source model prefers another token."""
    import torch

    before = artifact.tokenizer.encode(prompt)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([[*before, *result.ids]])).logits[0, len(before) - 1 :]
    best, choices = logits.max(-1)
    found = []
    for place, token in enumerate(result.ids):
        if choices[place] != token:
            ours = float(logits[place, token])
            found.append((place, token, float(best[place]) - ours, (float(best[place]), ours)))
    end_ids = artifact.tokenizer.end_ids
    if result.finish_reason == "end_id" and int(choices[-1]) not in end_ids:
        ours = float(logits[-1, list(end_ids)].max())
        found.append((len(result.ids), -1, float(best[-1]) - ours, (float(best[-1]), ours)))
    return found


def _report(root: Path, checks: list[Check]) -> Verification:
    verification = Verification(tuple(checks), _manifest_sha256(root))
    path = root / REPORT
    try:
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(verification.as_dict(), indent=1) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path)) from None
    return verification


def _read_report(root: Path) -> Verification | None:
    """Return the report of an earlier verification of this very artifact, if there is one."""
    try:
        document = json.loads((root / REPORT).read_bytes())
        checks = tuple(Check(**check) for check in document["checks"])
        report = Verification(checks, document["manifest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report if report.manifest_sha256 == _manifest_sha256(root) else None


def _manifest_sha256(root: Path) -> str:
    return hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
