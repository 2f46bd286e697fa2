# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench` without a load: benchmark one request at a time, and evaluate gates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtspec.cli.render import print_command, print_line, show_table
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.bench import OnProgress
    from trtspec.bench.gates import VerificationReport
    from trtspec.bench.speedup import BenchComparison


def show_comparison(comparison: BenchComparison, what: str) -> None:
    """Show the table, and for a server a curl command."""
    sides = (
        ("target alone", 1.0, comparison.baseline),
        ("speculative", comparison.speedup.median, comparison.speculative),
    )
    rows = [
        (
            name,
            f"{side.median:.0f}",
            f"{speedup:.2f}x",
            f"{side.stats.acceptance_rate:.3f}" if side.stats.drafted else "-",
            f"{side.stats.mean_accepted_len:.2f}" if side.stats.drafted or name == "target alone" else "-",
        )
        for name, speedup, side in sides
    ]
    columns = ("", "tokens/s", "speed-up", "acceptance rate", "mean accepted length")
    show_table(
        f"{what}: {comparison.prompts} prompts, {comparison.max_tokens} tokens each", columns, rows, (1, 2, 3, 4)
    )
    if comparison.acceptance == "typical":
        print_line("typical acceptance is lossy: sampled text differs from the target's", "yellow")
    if what.startswith("http://"):
        body = json.dumps({"text_input": '{"id": 7, "name":', "max_tokens": 32})
        print_command("try it", f"curl -s {what.rstrip('/')}/v2/models/ensemble/generate -d '{body}'")
    print_line(f"with speculation {comparison.speedup}")
    same, total = comparison.identical_texts, comparison.prompts
    print_line(
        f"identical text: {'yes' if same == total else 'NO'} ({same} of {total})", "green" if same == total else "red"
    )


def bench_one_at_a_time(
    what: str, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None, skip_gate: Sequence[str], *,
    gates: bool, json: bool,
) -> None:  # fmt: skip
    """Measure, show and save the results; with `gates`, exit with the code of the verification."""
    from trtspec.bench.documents import save_document
    from trtspec.bench.verdict import artifact_facts, comparison_facts, derive_verdict, evidence
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json, print_line

    url, status = _find(what)
    other = _find(baseline)[0] if baseline else None
    if baseline and not (url and other):
        raise TrtspecError("--baseline requires two servers", hint="deploy both, and pass their names or URLs")
    if skip_gate and not gates:
        raise TrtspecError("--skip-gate requires --gates", hint="add --gates")
    root, found = Path(status["artifact"]) if status else None, None
    with counter() as on_progress:
        measuring = _Measuring(prompts, max_tokens, runs, other, on_progress)
        if gates:
            comparison, found = _judge(what, url, status, measuring, skip_gate)
        elif url:
            comparison = _measure_server(url, root, measuring)
        else:
            comparison = _measure_artifact(Path(what), measuring)
    root = root or (None if url else Path(what))
    verdict = derive_verdict(evidence(artifact_facts(root, found), comparison_facts(comparison)))
    warnings = _warnings(root, prompts)
    document = verdict.as_dict() | comparison.as_dict() | (_identity(root) if root else {}) | {"warnings": warnings}
    if root:
        save_document(root, "bench", document)
    if json:
        print_json(document | (_gate_results(found) if found else {}))
    else:
        print_line(verdict.text, verdict.style)
        show_comparison(comparison, url or what)
        for warning in warnings:
            note(f"warning: {warning}", "yellow")
    if found:
        _end(found, what, quietly=json)


@dataclass(frozen=True)
class _Measuring:
    """Settings of a measurement, in this process or on a server."""

    prompts: Path | None
    max_tokens: int
    runs: int
    baseline: str | None
    on_progress: OnProgress


def _find(what: str) -> tuple[str, dict[str, Any]]:
    """Return a server's URL and its deployment status ({} for a URL); "" and {} for an artifact."""
    if "://" not in what and (Path(what).exists() or "/" in what):
        return "", {}
    from trtspec.deployment.base import resolve_server_address

    return resolve_server_address(what)


def _judge(
    what: str, url: str, document: dict[str, Any], measuring: _Measuring, skip: Sequence[str]
) -> tuple[BenchComparison, VerificationReport]:
    from trtspec.bench.artifact import artifact_prompts
    from trtspec.bench.gates import check_gate_names
    from trtspec.bench.run_gates import GateWorkload, bench_gates
    from trtspec.cli.render import note
    from trtspec.serving.triton.client import Client

    if url and not document:
        raise TrtspecError(
            "--gates requires a deployment or artifact, not a URL", where=what, hint="pass the deployment's name"
        )
    root = Path(document["artifact"]) if document else Path(what)
    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    load = GateWorkload(texts, measuring.max_tokens, measuring.runs, check_gate_names(skip), measuring.on_progress)
    return bench_gates(
        root,
        load,
        Client.at(url) if url else None,
        document.get("manifest", ""),
        Client.at(measuring.baseline) if measuring.baseline else None,
        lambda error: note(f"warning: {error}", "yellow"),
    )


def _warnings(root: Path | None, prompts: Path | None) -> list[str]:
    """Return warnings about the prompts, if the artifact is known."""
    from trtspec.bench.artifact import artifact_prompts
    from trtspec.bench.sources import overlap

    shared = overlap(root, (prompt.text for prompt in artifact_prompts(root, prompts))) if root else None
    return [shared.warning] if shared else []


def _identity(root: Path) -> dict[str, Any]:
    """Return the name and manifest digest of the measured artifact."""
    from trtspec.store.artifact import load_manifest, manifest_sha256

    return {"name": load_manifest(root).recipe.name, "manifest": manifest_sha256(root)}


def _gate_results(found: VerificationReport) -> dict[str, Any]:
    return {key: value for key, value in found.as_dict().items() if key in ("ok", "checks", "left_out")}


def _end(found: VerificationReport, what: str, *, quietly: bool) -> None:
    from trtspec.cli.render import print_line
    from trtspec.cli.verify import show_checks

    if not quietly:
        show_checks(found)
        print_line(f"{what}: gates {'passed' if found.ok else 'FAILED'}", "green" if found.ok else "red")
    raise typer.Exit(found.failure.exit_code if found.failure else 0)


def _measure_server(url: str, root: Path | None, measuring: _Measuring) -> BenchComparison:
    from trtspec.bench.artifact import artifact_prompts
    from trtspec.bench.bench import measure_server
    from trtspec.serving.triton.client import Client
    from trtspec.store.artifact import load_manifest

    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    acceptance = load_manifest(root).recipe.speculation.acceptance if root else "unknown"
    other = Client.at(measuring.baseline) if measuring.baseline else None
    return measure_server(
        Client.at(url), texts, measuring.max_tokens, measuring.runs, measuring.on_progress, acceptance, other
    )


def _measure_artifact(root: Path, measuring: _Measuring) -> BenchComparison:
    from trtspec.bench.artifact import artifact_prompts, open_artifact
    from trtspec.bench.bench import measure_engine

    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    with open_artifact(root) as artifact:
        return measure_engine(artifact, texts, measuring.max_tokens, measuring.runs, measuring.on_progress)[0]
