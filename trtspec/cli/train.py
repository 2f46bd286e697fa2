# SPDX-License-Identifier: Apache-2.0
"""`trtspec train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json, Recipe, Set
from trtspec.training.settings import Loss, Sizes, TrainSettings

if TYPE_CHECKING:
    from trtspec.training.external.job_record import JobRecord
    from trtspec.training.result import Result

FILE = "FILE"


def train(
    recipe: Recipe,
    prompts: Annotated[
        Path, typer.Option(metavar=FILE, help="Prompts of your own traffic, or a set that `trtspec prompts` lists.")
    ],
    set_: Set = None,
    keep: Annotated[
        Path | None, typer.Option(metavar=FILE, help="Prompts of other traffic, on which it must not get worse.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(metavar=FILE, help="Prompts to judge by, instead of a fifth of --prompts.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a better draft goes.  [default: drafts/NAME]")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Minutes that weights are trained at most.", min=0.01)] = 10.0,
    steps: Annotated[int, typer.Option(help="Steps of the optimizer at most; 0 for as many as fit.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=2)] = 128,
    sampled: Annotated[int, typer.Option(help="Further answers to each training prompt, of temperature 1.", min=0)] = 0,
    loss: Annotated[Loss, typer.Option(help="Distance from the target's distribution.")] = "greedy",
    lora: Annotated[int, typer.Option(help="Train matrices of this rank beside the weights.", min=0)] = 0,
    learning_rate: Annotated[
        float, typer.Option(help="The highest; 0 for one that fits the draft's width.", min=0)
    ] = 0.0,
    layers: Annotated[int, typer.Option(help="Layers of a draft from scratch; 0 for what fits the target.", min=0)] = 0,
    hidden_size: Annotated[int, typer.Option(help="Width of a draft model from scratch; 0 likewise.", min=0)] = 0,
    draft_vocab: Annotated[
        int, typer.Option(help="Tokens that a head from scratch drafts, the answers' most frequent; 0 likewise.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Equal seeds split, sample and shuffle equally.")] = 0,
    trainer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Write what another project's trainer needs to --out, by default drafts/NAME-TRAINER; train nothing.",
            autocompletion=completing.trainers,
            show_default=False,
        ),
    ] = "",
    result: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A directory that --trainer wrote, with the trained draft in it: judge that."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Put a better draft into the recipe.")] = False,
    json: Json = False,
) -> None:
    """Adapt a recipe's draft to your own prompts, and take it only where held-out ones prove it better.

    The target answers the prompts, the draft learns the target's distributions on these answers, and both drafts are
    measured on prompts that were held out. One that is worse on some kind is refused with exit code 112. Where the
    recipe names no draft, one of its method is made from scratch and judged by what it brings to the target alone.

    Example: trtspec train recipes/quickstart.yaml --prompts kinds --minutes 10
    """
    from trtspec.bench.saved_documents import keep_of_target
    from trtspec.cli.progress import build_bars
    from trtspec.cli.render import note, print_json
    from trtspec.core.errors import GateNotMet, TrtspecError
    from trtspec.recipe.yaml_edit import check_editable, write_section
    from trtspec.training.external.job import write_job
    from trtspec.training.external.take import take_result
    from trtspec.training.plan import Asked, section_with
    from trtspec.training.run import run

    if trainer and (result or write):
        message = "--trainer trains nothing: --result and --write do not go with it"
        raise TrtspecError(message, hint="--result DIR takes what it trained")
    if (trainer or result) and (lora or loss != "greedy"):
        raise TrtspecError(
            "another project trains: --lora and --loss do not go with --trainer and --result",
            hint="leave them out; its own settings are in the job's run.yaml",
        )
    if write:
        check_editable(recipe)  # before minutes of training
    settings = TrainSettings(loss, lora, learning_rate, steps, 60 * minutes, seed)
    sizes = Sizes(layers, hidden_size, draft_vocab)
    asked = Asked(recipe, set_ or [], prompts, keep, held_out, out, max_tokens, sampled, settings, sizes)
    if trainer:
        show_job(*write_job(asked, trainer, build_bars), json)
        return
    found = take_result(asked, result, build_bars) if result else run(asked, build_bars)
    document = found.as_dict()
    if found.target:
        keep_of_target(found.target["sha256"], f"train-{found.method}", document)
    if json:
        print_json(document)
    else:
        show(found)
    if write and found.published:
        written = write_section(recipe, "speculation", section_with(asked, found.out))
        note(f"{recipe}: {'speculation was changed' if written else 'says so already'}", "green")
    raise typer.Exit(0 if found.published else GateNotMet.exit_code)


def show_job(out: Path, record: JobRecord, json: bool) -> None:
    """Print what was written for a trainer."""
    from trtspec.cli.render import note, print_json, say

    if json:
        print_json({**record.model_dump(mode="json"), "out": str(out)})
        return
    for warning in record.warnings:
        note(f"warning: {warning}", "yellow")
    left_out = f", {record.left_out} left out" if record.left_out else ""
    say(
        f"{out}: {record.rows} rows, {record.tokens:,} tokens of answers{left_out}; README.md says what to run", "green"
    )


def show(found: Result) -> None:
    """Print acceptance before and after, of all held-out prompts and by kind, and what follows."""
    from trtspec.cli.render import say, show_table

    verdict = found.verdict
    rows = [
        (
            each.kind,
            str(len(each.before.texts)),
            f"{each.before.rate:.0%}",
            f"{each.after.rate:.0%}",
            str(each.before.token_weighted),
            str(each.after.token_weighted),
            f"{each.share:+.0%}",
            each.word,
        )
        for each in (verdict.whole, *verdict.kinds)
    ]
    columns = ("held-out prompts", "", "accepted", "after", "tokens a step", "after", "", "")
    by = f"{found.record['steps']} steps" if "steps" in found.record else f"trained by {found.record['trainer']}"
    how = ", from scratch" if found.from_scratch else ""
    show_table(f"{found.name}: {by}{how}", columns, rows, right=tuple(range(1, 7)))
    if found.left_out:
        say(f"{found.left_out} prompts were longer than the engine takes with --max-tokens, and left out", "yellow")
    for refusal in verdict.refusals:
        say(f"refused: {refusal}", "red")
    if found.published:
        say(f"{found.out}: published", "green")


command = train
