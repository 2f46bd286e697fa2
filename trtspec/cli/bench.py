# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench`: one request at a time, with or without gates; `cli/load.py` has the load benchmarks."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.bench.gates import MAX_RUNS
from trtspec.cli import completing, load, simulation
from trtspec.cli.load_results import compare_saved, show_sides
from trtspec.cli.measuring import artifact_measurements, measure_on_pool
from trtspec.cli.options import AllowCode, Baseline, Json, On, Prompts, SkipGate, Undecided, is_artifact
from trtspec.cli.progress import counter
from trtspec.cli.render import print_command, print_line, print_result, warn
from trtspec.cli.verify import show_checks
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.bench import OnProgress
    from trtspec.bench.gates import VerificationReport
    from trtspec.bench.speedup import BenchComparison
    from trtspec.serving.triton.client import Client


def bench(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL-or-ARTIFACT",
            help="Server URL, deployment name or artifact; with --on, also recipes.",
            show_default=False,
            autocompletion=completing.deployments,
        ),
    ] = None,
    on: On = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=1)] = 64,
    runs: Annotated[
        int, typer.Option(help=f"Runs with and without speculation; --gates may add runs, up to {MAX_RUNS}.", min=1)
    ] = 3,
    baseline: Baseline = None,
    gates: Annotated[bool, typer.Option("--gates", help="Evaluate the recipe's gates and write the report.")] = False,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
    undecided: Undecided = None,
    json: Json = False,
    concurrency: load.Concurrency = None,
    rate: load.Rate = None,
    until_crossover: load.UntilCrossover = False,
    api: load.Api = None,
    model: load.Model = None,
    key_env: load.KeyEnv = None,
    input_tokens: load.InputTokens = None,
    output_tokens: load.OutputTokens = None,
    tokenizer: load.Tokenizer = None,
    temperature: load.Temperature = None,
    seed: load.Seed = None,
    requests: load.Requests = None,
    max_rounds: load.MaxRounds = None,
    ci_width: load.CiWidth = None,
    duration: load.Duration = None,
    slo: load.Slo = None,
    samples_out: load.SamplesOut = None,
    timeout: load.Timeout = None,
    driver: load.Driver = None,
    fail_below: load.FailBelow = None,
    compare: load.Compare = None,
    absolute: load.Absolute = False,
    simulate_acceptance: simulation.SimulateAcceptance = None,
    simulate_out: simulation.SimulateOut = None,
) -> None:
    """Measure speculation against the target alone.

    Both sides run on the same engine in the same run, one request at a time. With --concurrency or --rate, a server is
    measured under that load with streaming requests. --compare compares two results of such runs.
    --simulate-acceptance measures the capacity at an assumed acceptance; nothing of it can be deployed. --on measures
    several artifacts or recipes, one at a time on each node.

    Example: trtspec bench build/quickstart
    """
    asked = load.LoadOptions(**{each.name: context.params[each.name] for each in fields(load.LoadOptions)})
    if compare:
        if what or asked.option_names not in ([], ["--fail-below"]):
            raise TrtspecError(
                "--compare cannot be combined with a target or load options",
                hint="trtspec bench --compare A.json B.json",
            )
        raise typer.Exit(compare_saved(*compare, fail_below, absolutely=absolute, json=json))
    if absolute:
        raise TrtspecError(
            "--ignore-baseline requires --compare", hint="trtspec bench --compare A.json B.json --ignore-baseline"
        )
    if not what:
        raise TrtspecError("missing argument URL-or-ARTIFACT", hint="trtspec bench --help")
    if on or len(what) > 1:
        if baseline or simulate_acceptance is not None or simulate_out or asked.option_names:
            message = "--on and several artifacts cannot be combined with a load, --baseline or --simulate-acceptance"
            raise TrtspecError(message, hint="measure servers one after the other")
        measure_on_pool(artifact_measurements(context, what), on, _summary, json=json)
        return
    (one,) = what
    if simulate_out is not None and simulate_acceptance is None:
        raise TrtspecError("--simulate-out requires --simulate-acceptance", hint="add --simulate-acceptance 2.5")
    if simulate_acceptance is not None:
        if gates or skip_gate or baseline or asked.fail_below is not None:
            message = "--simulate-acceptance cannot be combined with --gates, --baseline or --fail-below"
            raise TrtspecError(message, hint="the results are no evidence about the artifact")
        raise typer.Exit(
            simulation.bench_simulated(
                one, simulate_acceptance, simulate_out, asked, prompts, max_tokens, runs, json=json
            )
        )
    if asked.is_load:
        if gates:
            raise TrtspecError("--gates cannot be combined with a load", hint="omit --concurrency and --rate")
        raise typer.Exit(load.bench_load(one, asked, prompts, max_tokens, runs, baseline, json=json))
    if asked.option_names:
        names = ", ".join(asked.option_names)
        raise TrtspecError(
            f"{names} requires --concurrency or --rate", hint="add --concurrency 1,2,4,8 or --rate 1,2,4"
        )
    bench_one_at_a_time(one, prompts, max_tokens, runs, baseline, skip_gate or (), gates=gates, json=json)


def _summary(document: dict[str, Any]) -> str:
    """Return the speed-up in a document of `bench`, and whether its gates passed, in one line."""
    low, high = document["speedup_interval"]
    gates = {True: "; gates passed", False: "; gates FAILED", None: ""}[document.get("ok")]
    return f"{document['speedup']:.2f} times as fast ({low:.2f} to {high:.2f}){gates}"


def show_comparison(comparison: BenchComparison, what: str) -> None:
    """Show the comparison as a table and, for a server, a curl command to try."""
    show_sides(comparison, what)
    if comparison.acceptance == "typical":
        print_line("typical acceptance is lossy: sampled text differs from the target's", "yellow")
    if what.startswith("http://"):
        body = json_format.dumps({"text_input": '{"id": 7, "name":', "max_tokens": 32})
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
    from trtspec.store.artifact import load_manifest, manifest_sha256

    url, status = _find(what)
    other = _find(baseline)[0] if baseline else ""
    if baseline and not (url and other):
        raise TrtspecError("--baseline requires two servers", hint="deploy both, and pass their names or URLs")
    if skip_gate and not gates:
        raise TrtspecError("--skip-gate requires --gates", hint="add --gates")
    root = Path(status["artifact"]) if status else None if url else Path(what)
    if root:
        load_manifest(root).check_not_simulated(root)
    if gates and root is None:
        raise TrtspecError(
            "--gates requires a deployment or artifact, not a URL", where=what, hint="pass the deployment's name"
        )
    texts = [prompt.text for prompt in artifact_prompts(root, prompts)]
    server, alone = Client.at(url) if url else None, Client.at(other) if other else None
    found: VerificationReport | None = None
    with counter() as on_progress:
        if gates and root:
            workload = GateWorkload(texts, max_tokens, runs, check_gate_names(skip_gate), on_progress)
            comparison, found = bench_gates(root, workload, server, status.get("manifest", ""), alone, warn)
        else:
            comparison = _measure(root, server, alone, texts, max_tokens, runs, on_progress)
    verdict = decide(evidence(artifact_facts(root, found), comparison_facts(comparison)))
    identity = {"name": load_manifest(root).recipe.name, "manifest": manifest_sha256(root)} if root else {}
    warnings = [f"{shared}: {OTHER_PROMPTS}"] if root and (shared := overlap(root, texts)) else []
    document = verdict.as_dict() | comparison.as_dict() | identity | {"warnings": warnings}
    if root:
        save_document(root, "bench", document)
    if found:
        document |= {key: value for key, value in found.as_dict().items() if key in ("ok", "checks", "left_out")}

    def show() -> None:
        print_line(verdict.text, verdict.style)
        show_comparison(comparison, url or what)
        for warning in warnings:
            warn(warning)
        if found:
            show_checks(found)
            print_line(f"{what}: gates {'passed' if found.ok else 'FAILED'}", "green" if found.ok else "red")

    print_result(document, show, as_json=json)
    if found:
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


panel = "Measure"
everyday = 6
command = bench
