# SPDX-License-Identifier: Apache-2.0
"""Load options of `trtspec bench`, and their values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

Concurrency = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Closed loop: concurrent requests, one run per number.")
]
Rate = Annotated[
    str | None, typer.Option(metavar="R,R,...", help="Open loop: Poisson arrivals per second, one run per number.")
]
UntilCrossover = Annotated[
    bool, typer.Option("--until-crossover", help="Stop the sweep once speculation is significantly slower.")
]
Api = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="API: triton, completions or chat (default: detected)."),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Model name, if the server has several.")]
KeyEnv = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment variable with the API key (default: TRTSPEC_OPENAI_KEY)."),
]
InputTokens = Annotated[int | None, typer.Option(metavar="N", help="Use random prompts of N tokens.", min=1)]
OutputTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Generate exactly N tokens per request, ignoring end tokens.", min=1)
]
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Tokenizer for random prompts (default: the artifact's).")
]
Temperature = Annotated[float | None, typer.Option(help="Sampling temperature (default: greedy).", min=0, max=2)]
Seed = Annotated[
    int | None, typer.Option(help="Random seed of prompt order, arrivals and sampling (default: 0).", min=0, max=2**31)
]
Requests = Annotated[
    int | None,
    typer.Option(metavar="N", help="Requests per side and round (default: at least 16, depending on the load).", min=1),
]
MaxRounds = Annotated[
    int | None, typer.Option(help="Maximum rounds per load (default: 12); --runs is the minimum.", min=1)
]
Interval = Annotated[
    float | None,
    typer.Option(
        "--ci-width",
        help="Stop at this width of the speed-up's interval (default: 0.05); 0 for all rounds.",
        min=0,
        max=1,
    ),
]
Duration = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time limit per load for starting rounds, e.g. 60s.")
]
Slo = Annotated[
    str | None, typer.Option(metavar="LIMITS", help="Latency limits of goodput, e.g. ttft=200ms,tpot=30ms,e2e=5s.")
]
Samples = Annotated[
    Path | None, typer.Option("--samples-out", metavar="FILE", help="Write one JSON line per request to this file.")
]
Timeout = Annotated[str | None, typer.Option(metavar="TIME", help="Request timeout (default: 600s).")]
Driver = Annotated[
    str | None, typer.Option(metavar="NAME", help="Load generator: trtspec or aiperf (default: trtspec).")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.json B.json", help="Compare two saved load benchmarks instead of measuring."),
]
MinRatio = Annotated[
    float | None,
    typer.Option("--fail-below", help="Exit with 112 if the speed-up, or B over A, is significantly lower.", min=0),
]
Absolute = Annotated[
    bool,
    typer.Option("--ignore-baseline", help="With --compare: compare absolute speeds even if both have a baseline."),
]


@dataclass(frozen=True)
class LoadOptions:
    """Values of the load options; None for an option that was not given."""

    concurrency: str | None
    rate: str | None
    until_crossover: bool
    api: str | None
    model: str | None
    key_env: str | None
    input_tokens: int | None
    output_tokens: int | None
    tokenizer: Path | None
    temperature: float | None
    seed: int | None
    requests: int | None
    max_rounds: int | None
    ci_width: float | None
    duration: str | None
    slo: str | None
    samples_out: Path | None
    timeout: str | None
    driver: str | None
    fail_below: float | None

    @property
    def is_load(self) -> bool:
        """Return whether a load benchmark is requested."""
        return bool(self.concurrency or self.rate)

    @property
    def option_names(self) -> list[str]:
        """Return the names of the given options."""
        return [f"--{each.name.replace('_', '-')}" for each in fields(self) if getattr(self, each.name)]
