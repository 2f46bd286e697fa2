# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench`."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli import load_options as load
from trtspec.cli.load_compare import compare_saved
from trtspec.cli.loading import bench_load
from trtspec.cli.options import AllowCode, Baseline, Json, Prompts, SkipGate
from trtspec.errors import TrtspecError
from trtspec.measure.speedup import MAX_RUNS

if TYPE_CHECKING:
    from trtspec.measure.bench import Comparison, OnProgress
    from trtspec.measure.report import Verification


def bench(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="URL-or-ARTIFACT",
            help="A server's http:// address, a deployment's name, or an artifact.",
            show_default=False,
            autocompletion=completing.deployments,
        ),
    ] = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.", min=1)] = 64,
    runs: Annotated[
        int, typer.Option(help=f"Runs of each side; --gates adds some, up to {MAX_RUNS}, for a close limit.", min=1)
    ] = 3,
    baseline: Baseline = None,
    gates: Annotated[bool, typer.Option("--gates", help="Judge the recipe's gates, and write the report.")] = False,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
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
    interval: load.Interval = None,
    duration: load.Duration = None,
    slo: load.Slo = None,
    samples: load.Samples = None,
    timeout: load.Timeout = None,
    driver: load.Driver = None,
    min_ratio: load.MinRatio = None,
    compare: load.Compare = None,
    absolute: load.Absolute = False,
) -> None:
    """Measure speculation against the target alone, on the same engine in the same run, one request at a time.

    With --concurrency or --rate a server is measured under that load, by streams. --compare compares two such runs.

    Example: trtspec bench build/quickstart
    """
    asked = load.LoadAsked(
        concurrency, rate, until_crossover, api, model, key_env, input_tokens, output_tokens, tokenizer, temperature,
        seed, requests, max_rounds, interval, duration, slo, samples, timeout, driver, min_ratio,
    )  # fmt: skip
    if compare:
        if what is not None or asked.said not in ([], ["--min-ratio"]):
            raise TrtspecError("--compare measures nothing", hint="trtspec bench --compare A.json B.json")
        raise typer.Exit(compare_saved(*compare, min_ratio, absolutely=absolute, json=json))
    if absolute:
        raise TrtspecError("--absolute is of --compare", hint="trtspec bench --compare A.json B.json --absolute")
    if what is None:
        raise TrtspecError("nothing to measure is named", hint="trtspec bench --help")
    if asked.is_load:
        if gates:
            raise TrtspecError("--gates are judged one request at a time", hint="leave --concurrency and --rate out")
        raise typer.Exit(bench_load(what, asked, prompts, max_tokens, runs, baseline, json=json))
    if asked.said:
        said = ", ".join(asked.said)
        raise TrtspecError(f"{said} is of a load", hint="add --concurrency 1,2,4,8 or --rate 1,2,4")
    _one_at_a_time(what, prompts, max_tokens, runs, baseline, skip_gate or (), gates=gates, json=json)


def _one_at_a_time(
    what: str, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None, skip_gate: Sequence[str], *,
    gates: bool, json: bool,
) -> None:  # fmt: skip
    from trtspec.cli.progress import counter
    from trtspec.cli.render import print_json
    from trtspec.measure.documents import keep_document

    url, document = _find(what)
    other = _find(baseline)[0] if baseline else None
    if baseline and not (url and other):
        raise TrtspecError("--baseline compares two servers", hint="deploy both, and give their names or addresses")
    if skip_gate and not gates:
        raise TrtspecError("--skip-gate leaves out a gate that --gates judges", hint="add --gates")
    root, found = Path(document["artifact"]) if document else None, None
    with counter() as on_progress:
        measuring = _Measuring(prompts, max_tokens, runs, other, on_progress)
        if gates:
            comparison, found = _judge(what, url, document, measuring, skip_gate)
        elif url:
            comparison = _measure_server(url, root, measuring)
        else:
            comparison = _measure_artifact(Path(what), measuring)
    if root := root or (None if url else Path(what)):
        keep_document(root, "bench", comparison.as_dict())
    if json:
        print_json(comparison.as_dict() | (_judged(found) if found else {}))
    else:
        show(comparison, url or what)
    if found:
        _end(found, what, quietly=json)


@dataclass(frozen=True)
class _Measuring:
    """What the command was asked for, wherever it is measured."""

    prompts: Path | None
    max_tokens: int
    runs: int
    baseline: str | None
    on_progress: OnProgress


def _find(what: str) -> tuple[str, dict[str, Any]]:
    """Return the address of a server and its status, which only a name leads to; of an artifact neither."""
    if "://" not in what and (Path(what).exists() or "/" in what):
        return "", {}
    from trtspec.deploy.base import address_of

    return address_of(what)


def _judge(
    what: str, url: str, document: dict[str, Any], measuring: _Measuring, skip: Sequence[str]
) -> tuple[Comparison, Verification]:
    from trtspec.cli.render import note
    from trtspec.measure.artifact import artifact_prompts
    from trtspec.measure.gates import check_gate_names
    from trtspec.measure.gating import Load, bench_gates
    from trtspec.triton.client import Client

    if url and not document:
        raise TrtspecError("an address does not lead to the gates", where=what, hint="give the deployment's name")
    root = Path(document["artifact"]) if document else Path(what)
    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    load = Load(texts, measuring.max_tokens, measuring.runs, check_gate_names(skip), measuring.on_progress)
    return bench_gates(
        root,
        load,
        Client.at(url) if url else None,
        document.get("manifest", ""),
        Client.at(measuring.baseline) if measuring.baseline else None,
        lambda error: note(f"warning: {error}", "yellow"),
    )


def _judged(found: Verification) -> dict[str, Any]:
    return {key: value for key, value in found.as_dict().items() if key in ("ok", "checks", "left_out")}


def _end(found: Verification, what: str, *, quietly: bool) -> None:
    from trtspec.cli.render import say
    from trtspec.cli.verify import show_checks

    if not quietly:
        show_checks(found)
        say(f"{what}: its gates {'hold' if found.ok else 'do NOT hold'}", "green" if found.ok else "red")
    raise typer.Exit(found.failure.exit_code if found.failure else 0)


def _measure_server(url: str, root: Path | None, measuring: _Measuring) -> Comparison:
    from trtspec.artifacts.manifest import load_manifest
    from trtspec.measure.artifact import artifact_prompts
    from trtspec.measure.bench import measure_server
    from trtspec.triton.client import Client

    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    acceptance = load_manifest(root).recipe.speculation.acceptance if root else "unknown"
    other = Client.at(measuring.baseline) if measuring.baseline else None
    return measure_server(
        Client.at(url), texts, measuring.max_tokens, measuring.runs, measuring.on_progress, acceptance, other
    )


def _measure_artifact(root: Path, measuring: _Measuring) -> Comparison:
    from trtspec.measure.artifact import artifact_prompts, open_artifact
    from trtspec.measure.bench import measure_engine

    texts = [prompt.text for prompt in artifact_prompts(root, measuring.prompts)]
    with open_artifact(root) as artifact:
        return measure_engine(artifact, texts, measuring.max_tokens, measuring.runs, measuring.on_progress)[0]


def show(comparison: Comparison, what: str) -> None:
    """Show the table, and for a server how to ask it oneself."""
    from trtspec.cli.render import say, say_command, show_table

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
        say("typical acceptance is lossy: sampled text is not the target's", "yellow")
    if what.startswith("http://"):
        body = json_module.dumps({"text_input": '{"id": 7, "name":', "max_tokens": 32})
        say_command("ask it", f"curl -s {what.rstrip('/')}/v2/models/ensemble/generate -d '{body}'")
    say(f"with speculation {comparison.speedup}")
    same, total = comparison.identical_texts, comparison.prompts
    say(f"identical text: {'yes' if same == total else 'NO'} ({same} of {total})", "green" if same == total else "red")


command = bench
