# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench` without a load: benchmark one request at a time, and evaluate gates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trtspec.cli.options import is_artifact
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_command, print_json, print_line, show_table
from trtspec.cli.verify import show_checks
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.bench import OnProgress
    from trtspec.bench.gates import VerificationReport
    from trtspec.bench.speedup import BenchComparison
    from trtspec.serving.triton.client import Client


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
    from trtspec.bench.artifact import artifact_prompts
    from trtspec.bench.decision import artifact_facts, comparison_facts, decide, evidence
    from trtspec.bench.documents import save_document
    from trtspec.bench.gates import check_gate_names
    from trtspec.bench.sources import OTHER_PROMPTS, overlap
    from trtspec.bench.verify import GateWorkload, bench_gates
    from trtspec.serving.triton.client import Client

    url, status = _find(what)
    other = _find(baseline)[0] if baseline else ""
    if baseline and not (url and other):
        raise TrtspecError("--baseline requires two servers", hint="deploy both, and pass their names or URLs")
    if skip_gate and not gates:
        raise TrtspecError("--skip-gate requires --gates", hint="add --gates")
    root = Path(status["artifact"]) if status else None if url else Path(what)
    if gates and root is None:
        raise TrtspecError(
            "--gates requires a deployment or artifact, not a URL", where=what, hint="pass the deployment's name"
        )
    texts = [prompt.text for prompt in artifact_prompts(root, prompts)]
    server, alone = Client.at(url) if url else None, Client.at(other) if other else None
    found: VerificationReport | None = None
    with counter() as on_progress:
        if gates and root:
            load = GateWorkload(texts, max_tokens, runs, check_gate_names(skip_gate), on_progress)
            comparison, found = bench_gates(root, load, server, status.get("manifest", ""), alone, _warn)
        else:
            comparison = _measure(root, server, alone, texts, max_tokens, runs, on_progress)
    verdict = decide(evidence(artifact_facts(root, found), comparison_facts(comparison)))
    shared = overlap(root, texts) if root else ""
    warnings = [f"{shared}: {OTHER_PROMPTS}"] if shared else []
    document = verdict.as_dict() | comparison.as_dict() | (_identity(root) if root else {}) | {"warnings": warnings}
    if root:
        save_document(root, "bench", document)
    if json:
        results = found.as_dict() if found else {}
        print_json(document | {key: results[key] for key in ("ok", "checks", "left_out") if results})
    else:
        print_line(verdict.text, verdict.style)
        show_comparison(comparison, url or what)
        for warning in warnings:
            _warn(warning)
    if found:
        if not json:
            show_checks(found)
            print_line(f"{what}: gates {'passed' if found.ok else 'FAILED'}", "green" if found.ok else "red")
        raise typer.Exit(found.failure.exit_code if found.failure else 0)


def _find(what: str) -> tuple[str, dict[str, Any]]:
    """Return a server's URL and its deployment status ({} for a URL); "" and {} for an artifact."""
    from trtspec.deployment.base import resolve_server_address

    return ("", {}) if is_artifact(what) else resolve_server_address(what)


def _measure(
    root: Path | None, server: Client | None, alone: Client | None, texts: list[str], max_tokens: int, runs: int,
    on_progress: OnProgress,
) -> BenchComparison:  # fmt: skip
    """Measure a server, or without one the artifact in this process; `alone` is a server without speculation."""
    from trtspec.bench.artifact import open_artifact
    from trtspec.bench.bench import measure_engine, measure_server
    from trtspec.store.artifact import load_manifest

    if server:
        acceptance = load_manifest(root).recipe.speculation.acceptance if root else "unknown"
        return measure_server(server, texts, max_tokens, runs, on_progress, acceptance, alone)
    if root is None:
        raise ValueError("neither a server nor an artifact")
    with open_artifact(root) as artifact:
        return measure_engine(artifact, texts, max_tokens, runs, on_progress)[0]


def _warn(warning: object) -> None:
    note(f"warning: {warning}", "yellow")


def _identity(root: Path) -> dict[str, Any]:
    """Return the name and manifest digest of the measured artifact."""
    from trtspec.store.artifact import load_manifest, manifest_sha256

    return {"name": load_manifest(root).recipe.name, "manifest": manifest_sha256(root)}
