# SPDX-License-Identifier: Apache-2.0
"""`trtspec advise`: recommend whether to speculate and with which method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json, Set
from trtspec.cli.render import print_command, print_line, print_result, show_table
from trtspec.engine.prompts.prompt import KINDS

if TYPE_CHECKING:
    from trtspec.report.advisor.advice import Advice, AdviceRule, AdvisorFact

Work = Literal[KINDS]  # type: ignore[valid-type]
AvailableDraft = Literal["none", "model", "head", "mtp"]


def advise(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE",
            help="Recipe file or name; its plan supplies facts.",
            show_default=False,
            autocompletion=completing.recipes,
        ),
    ] = None,
    set_: Set = None,
    concurrency: Annotated[float | None, typer.Option(min=0.01, help="Concurrent requests.")] = None,
    request_rate: Annotated[float | None, typer.Option(min=0.001, help="Requests per second.")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="Prompt length in tokens.")] = None,
    output_tokens: Annotated[float | None, typer.Option(min=1, help="Output length in tokens.")] = None,
    tpot: Annotated[
        float | None, typer.Option(min=0.001, help="Milliseconds per output token without speculation.")
    ] = None,
    tpot_target: Annotated[
        float | None, typer.Option(min=0.001, help="Required milliseconds per output token.")
    ] = None,
    gpu_utilization: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Tensor core utilization while generating, in percent (DCGM PIPE_TENSOR_ACTIVE, not nvidia-smi).",
        ),
    ] = None,
    memory_left: Annotated[float | None, typer.Option(min=0, help="GPU memory available to a draft, in GB.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = None,
    acceptance_rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of consecutive draft tokens accepted.")
    ] = None,
    mean_accepted_len: Annotated[float | None, typer.Option(min=1, help="Mean tokens generated per step.")] = None,
    work: Annotated[
        Work | None, typer.Option(metavar="KIND", help=f"Main kind of request: {', '.join(KINDS)}.")
    ] = None,
    draft: Annotated[
        AvailableDraft | None, typer.Option(help="Available draft: a smaller model, a trained head or MTP layers.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="URL", help="Read metrics from a Triton, vLLM, SGLang or TensorRT-LLM server.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, max=300, help="Seconds between the two readings of --metrics.")] = 5,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Query a Prometheus server for the same metrics.")
    ] = None,
    selector: Annotated[
        str, typer.Option(metavar="LABELS", help="Label matchers for --prometheus, e.g. 'instance=\"a:8002\"'.")
    ] = "",
    json: Json = False,
) -> None:
    """Recommend whether to speculate and with which method.

    Reports the rule that decides and the facts that are missing.

    Example: trtspec advise --concurrency 4 --output-tokens 300 --draft head
    """
    from trtspec.report.advisor.advice import FACT_OPTIONS, AdvisorFact
    from trtspec.report.advisor.advice import advise as advise_on
    from trtspec.report.advisor.metric_facts import QueriedMetrics, measured_facts, scrape
    from trtspec.report.monitoring.prometheus import Prometheus

    given = {fact: context.params[option.lstrip("-").replace("-", "_")] for fact, option in FACT_OPTIONS.items()}
    answers: dict[str, AdvisorFact] = {}
    if prometheus:
        answers |= measured_facts(QueriedMetrics(Prometheus(prometheus), selector), prometheus)
    if metrics:
        answers |= scrape(metrics, seconds)
    answers |= {name: AdvisorFact(value, "told") for name, value in given.items() if value is not None}
    notes: list[str] = []
    if recipe:
        from trtspec.recipe.load import load_recipe
        from trtspec.report.advisor.recipe import recipe_facts

        planned, notes = recipe_facts(load_recipe(recipe, set_ or []), answers)
        answers = {"recipe": AdvisorFact(str(recipe), "told"), **planned, **answers}
    found = advise_on(answers, notes)
    print_result(found.as_dict(), lambda: show(found), as_json=json)


COLOURS = {"yes": "green", "measure": "yellow", "no": "red"}
SOURCES = {"told": "command line"}
VERDICTS = {"yes": "yes", "measure": "measure it", "no": "no"}


def show(found: Advice) -> None:
    """Show the verdict with its rule, the methods to try, the other rules that apply, and missing facts."""
    rows = []
    for name, each in sorted(found.answers.items()):
        value = f"{each.value:.3g}" if isinstance(each.value, float) else str(each.value)
        rows.append((name.replace("_", " "), value, SOURCES.get(each.source, each.source)))
    if rows:
        show_table("", ("fact", "value", "source"), rows)
    for note in found.notes:
        print_line(note, "yellow")
    others = [(rule.name, VERDICTS[rule.says], rule.reason(found.answers)) for rule in found.others]
    if others:
        show_table("other rules that apply", ("rule", "verdict", "reason"), others)
    missing = [(", ".join(options), ", ".join(rules)) for options, rules in found.not_told.items()]
    if missing:
        show_table("missing facts, and the rules that need them", ("option", "rules"), missing)
    if found.speculate != "no":
        print_line(f"try {', then '.join(found.methods)}: {_because(found, found.method_rule)}")
    for command in found.first:
        print_command("first", command)
    verdict = f"speculate: {VERDICTS[found.speculate]}, by {found.decided_by.name}: {_because(found, found.decided_by)}"
    print_line(verdict, COLOURS[found.speculate])


def _because(found: Advice, rule: AdviceRule) -> str:
    return f"{rule.reason(found.answers)}; source: {rule.source}"


panel = "Decide"
command = advise
