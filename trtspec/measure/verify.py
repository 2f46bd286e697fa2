# SPDX-License-Identifier: Apache-2.0
"""Proves that an artifact says what its target says, and that its gates hold.

The oracle for the text is the source model run by transformers: one pass over prompt and answer tells, for each
token, whether it is the model's own greedy choice after all that stands before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.artifacts.manifest import Manifest, load_manifest, verify_files
from trtspec.artifacts.origins import recall_origin
from trtspec.artifacts.paths import MANIFEST, REPORTS
from trtspec.artifacts.prompts import Prompt
from trtspec.backends.base import find_backend
from trtspec.checkpoint.prepare import locate_source
from trtspec.checkpoint.source import load_source
from trtspec.checkpoint.trtllm import load_checkpoint
from trtspec.errors import CheckpointError, GateNotMet, TrtspecError, VerificationFailed
from trtspec.files import replace_file
from trtspec.generation.request import Result
from trtspec.measure.artifact import (
    TARGET,
    OpenArtifact,
    artifact_prompts,
    open_artifact,
    read_artifact,
)
from trtspec.measure.bench import measure_engine

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
REPORT = f"{REPORTS}/verify.json"
# Two float32 implementations differ by about 1e-5 of a logit; a lead smaller than this decides nothing.
TIE = 1e-3
# A conversion gone wrong agrees with its source on few tokens; one rounded to FP8 on all but a few.
QUANTIZED_PARITY = 0.9
SHOWN = 5  # differences and ties that a report spells out
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
    """All checks of an artifact, the rule that it accepts drafts by, and the manifest they are about."""

    checks: tuple[Check, ...]
    acceptance: str
    manifest_sha256: str

    @property
    def ok(self) -> bool:
        """Return whether everything holds."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`."""
        checks = [asdict(check) for check in self.checks]
        return {
            "format_version": FORMAT_VERSION,
            "ok": self.ok,
            "acceptance": self.acceptance,
            "checks": checks,
            "manifest": self.manifest_sha256,
        }

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

    Of an artifact with damaged files nothing more is checked. `source` is where the target's Hugging Face checkpoint
    lies now, if not where it was built from. Raises TrtspecError where it cannot be found.
    """
    manifest = load_manifest(root)
    checks = [_check_files(root, manifest)]
    if checks[0].ok:
        prompts = artifact_prompts(root, prompts_file)
        source = _find_source(root, manifest, source)
        with open_artifact(root, manifest) as artifact:
            results, gates = _check_gates(artifact, prompts, max_tokens, on_progress)
            checks += [_check_parity(artifact, source, prompts, results, on_progress), *gates]
    return _report(root, manifest, checks)


def ensure_gates(root: Path, on_progress: OnProgress = lambda what, done, total: None) -> bool:
    """Raise unless the gates of an artifact hold: by its report, or where it has none by measuring them now.

    Returns whether they were measured: an engine that does not run in this process can only be measured on its server.
    Raises DigestMismatch, VerificationFailed or GateNotMet. Needs no source model.
    """
    manifest = read_artifact(root)
    verification = _read_report(root)
    if verification is None and not find_backend(manifest.backend.name).in_process:
        return False
    if verification is None:
        prompts = artifact_prompts(root, None)[:DEPLOY_PROMPTS]
        with open_artifact(root, manifest) as artifact:
            checks = _check_gates(artifact, prompts, DEPLOY_TOKENS, on_progress)[1]
        verification = Verification(tuple(checks), manifest.recipe.speculation.acceptance, _manifest_sha256(root))
    if failure := verification.failure:
        raise failure
    return True


def _check_files(root: Path, manifest: Manifest) -> Check:
    problems, count = verify_files(root, manifest), len(manifest.files)
    detail = "; ".join(problems[:3]) or f"{count} files have the digests that were recorded"
    return Check("files", not problems, count - len(problems), count, detail)


def _check_gates(
    artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int, on_progress: OnProgress
) -> tuple[list[Result], list[Check]]:
    gates, speculates = artifact.recipe.gates, artifact.recipe.speculation.method != "none"
    texts = [prompt.text for prompt in prompts]
    measured, results = measure_engine(artifact, texts, max_tokens, runs=1, on_progress=on_progress)
    checks = []
    if gates.lossless:
        same, total = measured.identical_texts, len(prompts)
        detail = f"{same} of {total} texts are the same with and without speculation"
        exact = artifact.acceptance == "exact"
        if not exact:
            detail += f", but {artifact.acceptance} acceptance is lossy: sampled text is not the target's"
        checks.append(Check("lossless", exact and same == total, same, total, detail))
    if speculates and gates.min_acceptance:
        rate, limit = measured.speculative.stats.acceptance_rate, gates.min_acceptance
        detail = f"acceptance rate {rate:.3f}, at least {limit} is wanted"
        checks.append(Check("min_acceptance", rate >= limit, round(rate, 4), limit, detail))
    if speculates and gates.min_speedup:
        speedup, limit = measured.speedup, gates.min_speedup
        detail = f"{speedup:.2f} times the tokens/s without speculation, at least {limit} is wanted"
        checks.append(Check("min_speedup", speedup >= limit, round(speedup, 3), limit, detail))
    return results, checks


def _find_source(root: Path, manifest: Manifest, given: Path | None) -> Path:
    """Return the directory of the target's source, its config and headers seen to add up."""
    try:
        source = load_source(given or _origin(root, manifest))
        theirs, ours = source.reader.positive("vocab_size"), load_checkpoint(root / TARGET).config.vocab_size
    except CheckpointError as error:
        raise TrtspecError(
            f"the source of the target cannot be read: {error.message}",
            where=error.where,
            hint="say where it lies now with --source DIR",
        ) from None
    if theirs != ours:
        message = f"this is another model: it has {theirs} vocabulary entries, the artifact {ours}"
        raise TrtspecError(message, where=str(source.root))
    return source.root


def _origin(root: Path, manifest: Manifest) -> Path:
    """Return where the target was built from; a manifest of an earlier trtspec says it itself."""
    target = manifest.recipe.target
    if target.revision or os.path.isabs(target.model):
        return locate_source(target)
    directory = recall_origin(manifest)
    if directory is None:
        raise CheckpointError("the artifact was not built here, and its manifest says no place", where=str(root))
    return locate_source(target.model_copy(update={"model": directory}))


def _check_parity(
    artifact: OpenArtifact, source: Path, prompts: Sequence[Prompt], results: Sequence[Result], on_progress: OnProgress
) -> Check:
    """Hold every token against the source model's own choice at its place."""
    import torch
    import transformers

    untyped: Any = transformers
    untyped.utils.logging.disable_progress_bar()
    model = untyped.AutoModelForCausalLM.from_pretrained(str(source), dtype=torch.float32).eval()
    by_prompt = []
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True), 1):
        by_prompt.append((prompt.name, len(result.ids), _disagreements(artifact, model, prompt.text, result)))
        on_progress("parity", number, len(prompts))
    algorithm = load_checkpoint(artifact.root / TARGET).quantization.algo
    return _quantized_parity(algorithm, by_prompt) if algorithm else _exact_parity(by_prompt)


def _exact_parity(by_prompt: Sequence[tuple[str, int, list[_Disagreement]]]) -> Check:
    """Every text has to be the source model's, but for numerical ties."""
    found = [(name, each) for name, _, disagreements in by_prompt for each in disagreements]
    same = sum(all(each.lead <= TIE for each in disagreements) for _, _, disagreements in by_prompt)
    detail = f"{same} of {len(by_prompt)} texts are what transformers says greedily with the source model"
    differences = [f"prompt {name} {each}" for name, each in found if each.lead > TIE]
    ties = [f"prompt {name} {each}" for name, each in found if each.lead <= TIE]
    for what, texts in (("differences", differences), ("numerical ties", ties)):
        detail += f"; {len(texts)} {what}: " + ", ".join(texts[:SHOWN]) if texts else ""
    return Check("parity", not differences, same, len(by_prompt), detail)


def _quantized_parity(algorithm: str, by_prompt: Sequence[tuple[str, int, list[_Disagreement]]]) -> Check:
    """A quantized target is a model of its own; its tokens, each after its own text, are mostly the source's."""
    tokens = sum(count for _, count, _ in by_prompt)
    leads = [each.lead for _, _, disagreements in by_prompt for each in disagreements]
    share = 1 - len(leads) / max(1, tokens)
    detail = f"{share:.1%} of {tokens} tokens of the {algorithm} target are the unquantized source's own choice"
    if leads:
        detail += f"; where not, the source prefers its own by {statistics.median(leads):.3f} of a logit (median)"
    return Check("parity", share >= QUANTIZED_PARITY, round(share, 4), QUANTIZED_PARITY, detail)


@dataclass(frozen=True)
class _Disagreement:
    """A place of an answer where the source model prefers another token, with both tokens' logits in it."""

    place: int
    theirs: int
    ours: int
    their_logit: float
    our_logit: float

    @property
    def lead(self) -> float:
        return self.their_logit - self.our_logit

    def __str__(self) -> str:
        return (
            f"token {self.place}: the source prefers {self.theirs} (logit {self.their_logit:.6f})"
            f" to our {self.ours} ({self.our_logit:.6f})"
        )


def _disagreements(artifact: OpenArtifact, model: Any, prompt: str, result: Result) -> list[_Disagreement]:
    """Return every place where the source model prefers another token; an end that was chosen is a token too."""
    import torch

    before = artifact.tokenizer.encode(prompt)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([[*before, *result.ids]])).logits[0, len(before) - 1 :]
    ids = list(result.ids)
    if result.finish_reason == "end_id":
        ids.append(max(artifact.tokenizer.end_ids, key=lambda token: float(logits[-1, token])))
    return [
        _Disagreement(place, theirs, ours, float(logits[place, theirs]), float(logits[place, ours]))
        for place, (theirs, ours) in enumerate(zip(logits.argmax(-1).tolist(), ids, strict=False))
        if theirs != ours
    ]


def _report(root: Path, manifest: Manifest, checks: list[Check]) -> Verification:
    verification = Verification(tuple(checks), manifest.recipe.speculation.acceptance, _manifest_sha256(root))
    path = root / REPORT
    try:
        path.parent.mkdir(exist_ok=True)
        data = json.dumps(verification.as_dict(), indent=1).encode() + b"\n"
        replace_file(path, data, path.with_suffix(f".{os.getpid()}.tmp"))
    except OSError as error:
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path)) from None
    return verification


def _read_report(root: Path) -> Verification | None:
    """Return the report of an earlier verification of this very artifact, if there is one."""
    try:
        document = json.loads((root / REPORT).read_bytes())
        checks = tuple(Check(**check) for check in document["checks"])
        report = Verification(checks, document["acceptance"], document["manifest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report if report.manifest_sha256 == _manifest_sha256(root) else None


def _manifest_sha256(root: Path) -> str:
    return hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
