# SPDX-License-Identifier: Apache-2.0
"""`trtspec advise`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json, Set
from trtspec.engine.prompts.prompt import KINDS

if TYPE_CHECKING:
    from trtspec.report.advisor.evaluate import Advice
    from trtspec.report.advisor.questions import Answer
    from trtspec.report.advisor.rules import Rule

Work = Enum("Work", {kind.replace("-", "_"): kind for kind in KINDS}, type=str)  # type: ignore[misc]


class Drafts(str, Enum):
    """What there is to draft with."""

    none = "none"
    model = "model"
    head = "head"
    mtp = "mtp"


def advise(
    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe: with it the planner decides where it can.",
            show_default=False,
            autocompletion=completing.recipes,
        ),
    ] = None,
    set_: Set = None,
    concurrency: Annotated[float | None, typer.Option(min=0.01, help="Requests that run at once.")] = None,
    request_rate: Annotated[float | None, typer.Option(min=0.001, help="Requests a second.")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="Tokens of a prompt.")] = None,
    output_tokens: Annotated[float | None, typer.Option(min=1, help="Tokens of an answer.")] = None,
    tpot: Annotated[float | None, typer.Option(min=0.001, help="Milliseconds a token, of the target alone.")] = None,
    tpot_target: Annotated[float | None, typer.Option(min=0.001, help="Milliseconds that a token may take.")] = None,
    gpu_utilization: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Percent of its arithmetic in use while it generates: DCGM's PIPE_TENSOR_ACTIVE, not nvidia-smi's.",
        ),
    ] = None,
    memory_left: Annotated[float | None, typer.Option(min=0, help="GB of a GPU that a draft may take.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of sampling; 0 is greedy.")] = None,
    acceptance_rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="Part of the tokens drafted in a row that are accepted.")
    ] = None,
    mean_accepted_len: Annotated[float | None, typer.Option(min=1, help="Tokens that a step gives.")] = None,
    work: Annotated[
        Work | None, typer.Option(metavar="KIND", help=f"What is mostly asked: {', '.join(KINDS)}.")
    ] = None,
    draft: Annotated[
        Drafts | None, typer.Option(help="What there is to draft with: a smaller model, a trained head, MTP layers.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="URL", help="Read a server's metrics: ours, vLLM's, SGLang's, TensorRT-LLM's.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, max=300, help="Between the two readings of --metrics.")] = 5,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a Prometheus for the same metrics.")
    ] = None,
    selector: Annotated[
        str, typer.Option(metavar="LABELS", help="Which series of Prometheus, as 'instance=\"a:8002\"'.")
    ] = "",
    json: Json = False,
) -> None:
    """Advise whether to speculate, with what, and say which rule decides and what it does not know.

    Example: trtspec advise --concurrency 4 --output-tokens 300 --draft head
    """
    from trtspec.cli.render import print_json
    from trtspec.report.advisor.evaluate import advise as advise_on
    from trtspec.report.advisor.metric_facts import measured_answers, scrape
    from trtspec.report.advisor.prometheus_values import Queried
    from trtspec.report.advisor.questions import Answer
    from trtspec.report.monitoring.prometheus import Prometheus

    given = {
        "concurrency": concurrency,
        "request_rate": request_rate,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "tpot_ms": tpot,
        "tpot_target_ms": tpot_target,
        "gpu_utilization": gpu_utilization,
        "memory_left_gb": memory_left,
        "temperature": temperature,
        "acceptance_rate": acceptance_rate,
        "mean_accepted_len": mean_accepted_len,
        "work": work and work.value,
        "draft": draft and draft.value,
    }
    answers: dict[str, Answer] = {}
    if prometheus:
        answers |= measured_answers(Queried(Prometheus(prometheus), selector), prometheus)
    if metrics:
        answers |= scrape(metrics, seconds)
    answers |= {name: Answer(value, "told") for name, value in given.items() if value is not None}
    planned, notes = _planned(recipe, set_ or [], answers) if recipe else ({}, [])
    found = advise_on(planned | answers, notes)
    if json:
        print_json(found.as_dict())
    else:
        show(found)


def _planned(recipe: Path, overrides: list[str], told: dict[str, Answer]) -> tuple[dict[str, Answer], list[str]]:
    from trtspec.recipe.load import load_recipe
    from trtspec.report.advisor.questions import Answer
    from trtspec.report.advisor.recipe import recipe_answers

    found, notes = recipe_answers(load_recipe(recipe, overrides), told)
    return {"recipe": Answer(str(recipe), "told"), **found}, notes


COLOURS = {"yes": "green", "measure": "yellow", "no": "red"}
SAID = {"yes": "yes", "measure": "measure it", "no": "no"}


def show(found: Advice) -> None:
    """Show the verdict with its rule, what to try, what else fired, and what was not told."""
    from trtspec.cli.render import say, say_command, show_table

    rows = [(name.replace("_", " "), _shown(each), each.source) for name, each in sorted(found.answers.items())]
    if rows:
        show_table("", ("answer", "", "from"), rows)
    for note in found.notes:
        say(note, "yellow")
    others = [(rule.name, SAID[rule.says], rule.reason(found.answers)) for rule in found.others]
    if others:
        show_table("beside the rule that decides", ("rule", "says", "because"), others)
    untold = [(", ".join(options), ", ".join(rules)) for options, rules in found.not_told.items()]
    if untold:
        show_table("what was not told, and which rules it could make decide", ("option", "rules"), untold)
    if found.speculate != "no":
        say(f"try {', then '.join(found.methods)}: {_because(found, found.method_rule)}")
    for command in found.first:
        say_command("first", command)
    said = f"speculate: {SAID[found.speculate]}, by {found.decided_by.name}: {_because(found, found.decided_by)}"
    say(said, COLOURS[found.speculate])


def _because(found: Advice, rule: Rule) -> str:
    return f"{rule.reason(found.answers)}; source: {rule.source}"


def _shown(answer: Answer) -> str:
    value: Any = answer.value
    return f"{value:.3g}" if isinstance(value, float) else str(value)


command = advise
