# SPDX-License-Identifier: Apache-2.0
"""The options of `bench` that are about loads, and what was asked with them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

Concurrency = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="Ask so many at once, each number in turn: a closed loop.")
]
Rate = Annotated[
    str | None, typer.Option(metavar="R,R,...", help="Let requests come at random, R a second: an open loop.")
]
UntilCrossover = Annotated[
    bool, typer.Option("--until-crossover", help="End the sweep where speculation is shown to be slower.")
]
Api = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="triton, completions or chat; what the server has, where it is not said."),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="The model's name, of several at an address.")]
KeyEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment's variable with the key (TRTSPEC_OPENAI_KEY).")
]
InputTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Draw random prompts of N tokens instead of taking real ones.", min=1)
]
OutputTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Exactly N new tokens a request, wherever its text ends.", min=1)
]
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The tokenizer of random prompts; the artifact's is known.")
]
Temperature = Annotated[float | None, typer.Option(help="Sample; without it decoding is greedy.", min=0, max=2)]
Seed = Annotated[int | None, typer.Option(help="Of the prompts' order, arrivals and samples (0).", min=0, max=2**31)]
Requests = Annotated[
    int | None, typer.Option(metavar="N", help="Requests of each side in a round (16 or more, by the load).", min=1)
]
MaxRounds = Annotated[int | None, typer.Option(help="Rounds of each load at most (12); --runs is at least.", min=1)]
Interval = Annotated[
    float | None,
    typer.Option(help="Measure until the speed-up's interval is this narrow (0.05); 0 for all rounds.", min=0, max=1),
]
Duration = Annotated[str | None, typer.Option(metavar="TIME", help="Begin no round of a load after this, as 60s.")]
Slo = Annotated[str | None, typer.Option(metavar="LIMITS", help="What is goodput, as ttft=200ms,tpot=30ms,e2e=5s.")]
Samples = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a line of JSON for each request.")]
Timeout = Annotated[str | None, typer.Option(metavar="TIME", help="Of one whole answer (600s).")]
Driver = Annotated[
    str | None, typer.Option(metavar="NAME", help="What asks: trtspec, or aiperf where it is installed.")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.json B.json", help="Compare two saved documents of loads instead of measuring."),
]
MinRatio = Annotated[
    float | None,
    typer.Option(help="Exit with 112 where speed-up, or B over A, is shown to be less.", min=0),
]
Absolute = Annotated[
    bool, typer.Option("--absolute", help="Compare the servers' own speeds, also where both have a baseline.")
]


@dataclass(frozen=True)
class LoadAsked:
    """What was asked of a load; None is what nobody said."""

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
    interval: float | None
    duration: str | None
    slo: str | None
    samples: Path | None
    timeout: str | None
    driver: str | None
    min_ratio: float | None

    @property
    def is_load(self) -> bool:
        """Return whether a load is asked for at all."""
        return bool(self.concurrency or self.rate)

    @property
    def said(self) -> list[str]:
        """Return the options that were given."""
        return [f"--{each.name.replace('_', '-')}" for each in fields(self) if getattr(self, each.name)]
