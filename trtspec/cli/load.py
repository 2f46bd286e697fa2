# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench --concurrency` and `--rate`: the options of load benchmarks, and their execution."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import is_artifact, parse_seconds
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_line, print_result
from trtspec.core.errors import DeployError, GateNotMet, TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.load.arrivals import ArrivalProcess
    from trtspec.bench.load.client import ServerAddress
    from trtspec.bench.load.rounds import LoadWorkload
    from trtspec.bench.load.sweep import StopRule

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
CiWidth = Annotated[
    float | None,
    typer.Option(help="Stop at this width of the speed-up's interval (default: 0.05); 0 for all rounds.", min=0, max=1),
]
Duration = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time limit per load for starting rounds, e.g. 60s.")
]
Slo = Annotated[
    str | None, typer.Option(metavar="LIMITS", help="Latency limits of goodput, e.g. ttft=200ms,tpot=30ms,e2e=5s.")
]
SamplesOut = Annotated[Path | None, typer.Option(metavar="FILE", help="Write one JSON line per request to this file.")]
Timeout = Annotated[str | None, typer.Option(metavar="TIME", help="Request timeout (default: 600s).")]
Driver = Annotated[
    str | None, typer.Option(metavar="NAME", help="Load generator: trtspec or aiperf (default: trtspec).")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="A.json B.json", help="Compare two saved load benchmarks instead of measuring."),
]
FailBelow = Annotated[
    float | None, typer.Option(help="Exit with 112 if the speed-up, or B over A, is significantly lower.", min=0)
]
Absolute = Annotated[
    bool,
    typer.Option("--ignore-baseline", help="With --compare: compare absolute speeds even if both have a baseline."),
]


@dataclass(frozen=True)
class LoadOptions:
    """Values of the load options; an option that was not given is None or False."""

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
        return bool(self.concurrency or self.rate)

    @property
    def option_names(self) -> list[str]:
        return [f"--{each.name.replace('_', '-')}" for each in fields(self) if getattr(self, each.name)]


RANDOM_PROMPTS = 64
MOST = 4096  # concurrent requests
OPENAI_APIS = ("completions", "chat")
NO_BASELINE = "no baseline: this server cannot disable speculation; pass a server without it as --baseline"


def bench_load(
    what: str, asked: LoadOptions, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None, *, json: bool
) -> int:
    """Run a load benchmark, show the results and return the exit code.

    If the server's acceptance is simulated, the results are not saved, and no decision follows from them.
    """
    from trtspec.bench.decision import artifact_facts, decide, evidence, load_facts
    from trtspec.bench.documents import save_document
    from trtspec.cli.load_results import load_gate, show_gate, show_load, show_mark
    from trtspec.engine.simulated_acceptance import SIMULATED

    document, root = load_document(what, asked, prompts, max_tokens, runs, baseline)
    is_simulated = SIMULATED in document
    verdict = decide(evidence(artifact_facts(root), load_facts(document["points"])))
    if not is_simulated:
        document |= verdict.as_dict()
    gate = load_gate(document, asked.fail_below) if asked.fail_below is not None else None
    document["gate"] = gate.as_dict() if gate else None
    if root and not document["ended_by"] and not is_simulated:  # keep complete runs only
        save_document(root, document["kind"], document)

    def show() -> None:
        if is_simulated:
            show_mark(document)
        else:
            print_line(verdict.text, verdict.style)
        show_load(document, what)
        show_gate(document["gate"])

    print_result(document, show, as_json=json)
    if document["ended_by"]:
        note(f"error: the run ended early ({document['ended_by']}); completed measurements are valid", "red")
    if gate is not None and not gate.ok:
        return GateNotMet.exit_code
    return DeployError.exit_code if document["ended_by"] else 0


def load_document(
    what: str, asked: LoadOptions, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None
) -> tuple[dict[str, Any], Path | None]:
    """Run a load benchmark; return its document and the served artifact, or None for a plain URL."""
    from trtspec.bench.load.client import TIMEOUT_S
    from trtspec.bench.load.document import build_document
    from trtspec.bench.load.sample import parse_slo
    from trtspec.bench.load.sweep import DRIVER, LoadPlan, measure, samples_file
    from trtspec.bench.sources import OTHER_PROMPTS, overlap
    from trtspec.store.artifact import load_manifest

    served, deployed = resolve_server(what, asked.api, asked.model or "", asked.key_env)
    root = Path(deployed["artifact"]) if deployed else None
    other = resolve_server(baseline, asked.api, "", asked.key_env)[0] if baseline else None
    slo = parse_slo(asked.slo) if asked.slo else None
    workload = _workload(root, asked, prompts, max_tokens)
    timeout_s = parse_seconds(asked.timeout, "--timeout") if asked.timeout else TIMEOUT_S
    driver, tokenizer, is_judged = asked.driver or DRIVER, _tokenizer(asked, root), asked.fail_below is not None
    plan = LoadPlan(
        served, other, workload, _loads(asked), _effort(asked, runs), timeout_s, driver, tokenizer, is_judged
    )
    if workload.source == "random":
        note("random prompts generate realistic load, but their acceptance is not representative", "yellow")
    with samples_file(asked.samples_out) as samples, counter() as on_progress:
        swept = measure(plan, samples, on_progress)
    simulated = load_manifest(root).simulated_acceptance if root else ()
    document = build_document(swept, workload, slo, driver, simulated)
    identity = {key: deployed.get(key, "") for key in ("name", "backend", "method", "manifest")}
    document["deployment"] = identity if deployed else None  # none for a plain URL
    if root and workload.source != "random" and (shared := overlap(root, (each.text for each in workload.prompts))):
        document["warnings"].append(f"{shared}: {OTHER_PROMPTS}")
    if "baseline" not in document["arms"]:
        note(NO_BASELINE, "yellow")
    return document, root


def _tokenizer(asked: LoadOptions, root: Path | None) -> Path | None:
    from trtspec.store.artifact_paths import TOKENIZER

    return asked.tokenizer or (root / TOKENIZER if root else None)


def resolve_server(what: str, api: str | None, model: str, key_env: str | None) -> tuple[ServerAddress, dict[str, Any]]:
    """Return the server at a URL or of a deployment, and the deployment's status (empty for a URL).

    Raises TrtspecError for an artifact, and DeployError if the deployment does not serve the requested API.
    """
    from trtspec.bench.load.client import AUTO, KEY_VARIABLE, TRITON, ServerAddress
    from trtspec.deployment.base import resolve_server_address

    if is_artifact(what):
        raise TrtspecError(
            "a load benchmark requires a server, not an artifact", where=what, hint=f"trtspec deploy {what}"
        )
    url, document = resolve_server_address(what)
    api = api or (TRITON if document else AUTO)
    if document and api in OPENAI_APIS:
        url = document["endpoints"].get("openai") or ""
        if not url:
            raise DeployError("the deployment does not serve the OpenAI API", where=what, hint="enable serving.openai")
    return ServerAddress(url, api, model, key_env or KEY_VARIABLE), document


def _workload(root: Path | None, asked: LoadOptions, prompts: Path | None, max_tokens: int) -> LoadWorkload:
    from trtspec.bench.artifact import artifact_prompts
    from trtspec.bench.load.api import LoadSampling
    from trtspec.bench.load.rounds import LoadWorkload, random_prompts

    seed = asked.seed or 0
    wanted = LoadSampling(asked.output_tokens or max_tokens, asked.temperature or 0.0, seed, bool(asked.output_tokens))
    if asked.input_tokens is None:
        source = str(prompts) if prompts else "the artifact's own" if root else "default"
        return LoadWorkload(artifact_prompts(root, prompts), wanted, source, seed)
    if prompts:
        raise TrtspecError("--input-tokens and --prompts are mutually exclusive", hint="omit one of them")
    tokenizer = _tokenizer(asked, root)
    if tokenizer is None:
        raise TrtspecError("--input-tokens requires a tokenizer", hint="pass its directory with --tokenizer")
    return LoadWorkload(random_prompts(tokenizer, asked.input_tokens, RANDOM_PROMPTS, seed), wanted, "random", seed)


def _loads(asked: LoadOptions) -> list[ArrivalProcess]:
    from trtspec.bench.load.arrivals import Closed, Poisson

    closed: list[ArrivalProcess] = [
        Closed(int(number)) for number in _numbers(asked.concurrency, "--concurrency", whole=True)
    ]
    return closed + [Poisson(number) for number in _numbers(asked.rate, "--rate", whole=False)]


def _numbers(text: str | None, option: str, *, whole: bool) -> list[float]:
    try:
        found = [float(int(part)) if whole else float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [0.0]
    if not all(0 < number <= MOST for number in found) or sorted(set(found)) != found:
        example = "1,2,4,8" if whole else "0.5,1,2"
        raise TrtspecError(
            f"{option}: {text!r} is not a list of increasing numbers up to {MOST:,}", hint=f"e.g. {example}"
        )
    return found


def _effort(asked: LoadOptions, runs: int) -> StopRule:
    from trtspec.bench.load.sweep import StopRule

    usual = StopRule()
    most = asked.max_rounds or max(runs, usual.most_rounds)
    if most < runs:
        raise TrtspecError(f"--max-rounds {most} is below --runs {runs}", hint="--runs is the minimum number of rounds")
    return StopRule(
        runs,
        most,
        (asked.ci_width or None) if asked.ci_width is not None else usual.interval,
        parse_seconds(asked.duration, "--duration") if asked.duration else None,
        asked.requests,
        asked.until_crossover,
    )
