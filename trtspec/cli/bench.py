# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.bench.gates import MAX_RUNS
from trtspec.cli import completing
from trtspec.cli import load_options as load
from trtspec.cli.load_results import compare_saved
from trtspec.cli.loading import bench_load
from trtspec.cli.one_at_a_time import bench_one_at_a_time
from trtspec.cli.options import AllowCode, Baseline, Json, Prompts, SkipGate, Undecided
from trtspec.core.errors import TrtspecError


def bench(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="URL-or-ARTIFACT",
            help="Server URL, deployment name or artifact.",
            show_default=False,
            autocompletion=completing.deployments,
        ),
    ] = None,
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
    """Measure speculation against the target alone.

    Both sides run on the same engine in the same run, one request at a time. With --concurrency or --rate, a server is
    measured under that load with streaming requests. --compare compares two results of such runs.

    Example: trtspec bench build/quickstart
    """
    asked = load.LoadOptions(
        concurrency, rate, until_crossover, api, model, key_env, input_tokens, output_tokens, tokenizer, temperature,
        seed, requests, max_rounds, interval, duration, slo, samples, timeout, driver, min_ratio,
    )  # fmt: skip
    if compare:
        if what is not None or asked.option_names not in ([], ["--fail-below"]):
            raise TrtspecError(
                "--compare cannot be combined with a target or load options",
                hint="trtspec bench --compare A.json B.json",
            )
        raise typer.Exit(compare_saved(*compare, min_ratio, absolutely=absolute, json=json))
    if absolute:
        raise TrtspecError(
            "--ignore-baseline requires --compare", hint="trtspec bench --compare A.json B.json --ignore-baseline"
        )
    if what is None:
        raise TrtspecError("missing argument URL-or-ARTIFACT", hint="trtspec bench --help")
    if asked.is_load:
        if gates:
            raise TrtspecError("--gates cannot be combined with a load", hint="omit --concurrency and --rate")
        raise typer.Exit(bench_load(what, asked, prompts, max_tokens, runs, baseline, json=json))
    if asked.option_names:
        names = ", ".join(asked.option_names)
        raise TrtspecError(
            f"{names} requires --concurrency or --rate", hint="add --concurrency 1,2,4,8 or --rate 1,2,4"
        )
    bench_one_at_a_time(what, prompts, max_tokens, runs, baseline, skip_gate or (), gates=gates, json=json)


panel = "Measure"
everyday = 6
command = bench
