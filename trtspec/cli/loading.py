# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench --concurrency` and `--rate`: run a load benchmark and return its document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.cli.load_options import LoadOptions
from trtspec.cli.options import is_artifact, parse_seconds
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_json, print_line
from trtspec.core.errors import DeployError, GateNotMet, TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.load.arrivals import ArrivalProcess
    from trtspec.bench.load.client import ServerAddress
    from trtspec.bench.load.rounds import LoadWorkload
    from trtspec.bench.load.sweep import LoadPlan, StopRule

RANDOM_PROMPTS = 64
MOST = 4096  # concurrent requests
OPENAI_APIS = ("completions", "chat")
NO_BASELINE = "no baseline: this server cannot disable speculation; pass a server without it as --baseline"


def bench_load(
    what: str, asked: LoadOptions, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None, *, json: bool
) -> int:
    """Run a load benchmark, show the results and return the exit code."""
    from trtspec.bench.decision import artifact_facts, decide, evidence, load_facts
    from trtspec.bench.documents import save_document
    from trtspec.cli.load_results import load_gate, show_gate, show_load

    document, root = load_document(what, asked, prompts, max_tokens, runs, baseline)
    verdict = decide(evidence(artifact_facts(root), load_facts(document["points"])))
    document |= verdict.as_dict()
    gate = load_gate(document, asked.fail_below) if asked.fail_below is not None else None
    document["gate"] = gate.as_dict() if gate else None
    if root and not document["ended_by"]:  # keep complete runs only
        save_document(root, document["kind"], document)
    if json:
        print_json(document)
    else:
        print_line(verdict.text, verdict.style)
        show_load(document, what)
        show_gate(document["gate"])
    if document["ended_by"]:
        note(f"error: the run ended early ({document['ended_by']}); completed measurements are valid", "red")
    if gate is not None and not gate.ok:
        return GateNotMet.exit_code
    return DeployError.exit_code if document["ended_by"] else 0


def load_document(
    what: str, asked: LoadOptions, prompts: Path | None, max_tokens: int, runs: int, baseline: str | None
) -> tuple[dict[str, Any], Path | None]:
    """Measure, and return the document and the served artifact, if known; TrtspecError for incompatible options."""
    from trtspec.bench.load.document import build_document
    from trtspec.bench.load.sample import parse_slo
    from trtspec.bench.load.sweep import measure, samples_file
    from trtspec.bench.sources import OTHER_PROMPTS, overlap

    served, deployed = resolve_server(what, asked.api, asked.model or "", asked.key_env)
    root = Path(deployed["artifact"]) if deployed else None
    other = resolve_server(baseline, asked.api, "", asked.key_env)[0] if baseline else None
    slo = parse_slo(asked.slo) if asked.slo else None
    plan = _plan(served, other, asked, _workload(root, asked, prompts, max_tokens), runs, root)
    if plan.workload.source == "random":
        note("random prompts generate realistic load, but their acceptance is not representative", "yellow")
    with samples_file(asked.samples_out) as samples, counter() as on_progress:
        swept = measure(plan, samples, on_progress)
    document = build_document(swept, plan.workload, slo, plan.driver)
    identity = {key: deployed.get(key, "") for key in ("name", "backend", "method", "manifest")}
    document["deployment"] = identity if deployed else None  # none for a plain URL
    if root and plan.workload.source != "random" and (shared := overlap(root, (p.text for p in plan.workload.prompts))):
        document["warnings"].append(f"{shared}: {OTHER_PROMPTS}")
    if "baseline" not in document["arms"]:
        note(NO_BASELINE, "yellow")
    return document, root


def _plan(
    served: ServerAddress,
    other: ServerAddress | None,
    asked: LoadOptions,
    workload: LoadWorkload,
    runs: int,
    root: Path | None,
) -> LoadPlan:
    from trtspec.bench.load.client import TIMEOUT_S
    from trtspec.bench.load.sweep import DRIVER, LoadPlan

    timeout_s = parse_seconds(asked.timeout, "--timeout") if asked.timeout else TIMEOUT_S
    driver, tokenizer = asked.driver or DRIVER, _tokenizer(asked, root)
    is_judged = asked.fail_below is not None
    return LoadPlan(
        served, other, workload, _loads(asked), _effort(asked, runs), timeout_s, driver, tokenizer, is_judged
    )


def _tokenizer(asked: LoadOptions, root: Path | None) -> Path | None:
    from trtspec.store.artifact_paths import TOKENIZER

    return asked.tokenizer or (root / TOKENIZER if root else None)


def resolve_server(what: str, api: str | None, model: str, key_env: str | None) -> tuple[ServerAddress, dict[str, Any]]:
    """Return the server at a URL or of a deployment, and the deployment's status (empty for a URL)."""
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
    from trtspec.bench.load.rounds import LoadWorkload

    seed = asked.seed or 0
    wanted = LoadSampling(asked.output_tokens or max_tokens, asked.temperature or 0.0, seed, bool(asked.output_tokens))
    if asked.input_tokens is None:
        source = str(prompts) if prompts else "the artifact's own" if root else "default"
        return LoadWorkload(artifact_prompts(root, prompts), wanted, source, seed)
    if prompts:
        raise TrtspecError("--input-tokens and --prompts are mutually exclusive", hint="omit one of them")
    from trtspec.bench.load.rounds import random_prompts

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
