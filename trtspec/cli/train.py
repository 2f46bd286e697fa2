# SPDX-License-Identifier: Apache-2.0
"""`trtspec train`: train a draft on a user's prompts and keep it if it is better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json, Recipe, Set
from trtspec.cli.progress import build_bars
from trtspec.cli.render import note, print_line, print_result, show_table, warn
from trtspec.core.errors import GateNotMet, TrtspecError
from trtspec.training.texts import Loss, Sizes, TrainSettings

if TYPE_CHECKING:
    from trtspec.training.evaluation import TrainResult
    from trtspec.training.external.job import JobRecord


def train(
    recipe: Recipe,
    prompts: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Training prompts: a file, or a set listed by `trtspec datasets --list`."),
    ],
    set_: Set = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--regression-prompts", metavar="FILE", help="Regression prompts, on which acceptance must not drop."
        ),
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Evaluation prompts (default: a fifth of --prompts).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output directory of a better draft (default: drafts/NAME).")
    ] = None,
    minutes: Annotated[
        float, typer.Option("--max-minutes", help="Time limit of training, in minutes.", min=0.01)
    ] = 10.0,
    steps: Annotated[int, typer.Option(help="Maximum optimizer steps; 0 for no limit.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens per response.", min=2)] = 128,
    sampled: Annotated[
        int, typer.Option("--samples-per-prompt", help="Additional responses per prompt, at temperature 1.", min=0)
    ] = 0,
    loss: Annotated[Loss, typer.Option(help="Training loss against the target's distribution.")] = "greedy",
    lora: Annotated[int, typer.Option(help="Train LoRA adapters of this rank; 0 trains all weights.", min=0)] = 0,
    learning_rate: Annotated[
        float, typer.Option(help="Peak learning rate; 0 to choose it by the draft's width.", min=0)
    ] = 0.0,
    layers: Annotated[int, typer.Option(help="Layers of a draft from scratch; 0 to choose.", min=0)] = 0,
    hidden_size: Annotated[int, typer.Option(help="Hidden size of a draft from scratch; 0 to choose.", min=0)] = 0,
    draft_vocab: Annotated[int, typer.Option(help="Draft vocabulary of a head from scratch; 0 to choose.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    trainer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Only prepare a job for this external trainer (in --out or drafts/NAME-TRAINER).",
            autocompletion=completing.trainers,
            show_default=False,
        ),
    ] = "",
    result: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Job directory of --trainer: evaluate the draft trained there."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write a better draft into the recipe.")] = False,
    json: Json = False,
) -> None:
    """Train a draft on your prompts and keep it if it is better.

    The target generates responses to the prompts, the draft learns the target's distributions on them, and both drafts
    are compared on held-out prompts. A draft that is worse on any kind of prompt is rejected with exit code 112. If the
    recipe lacks a draft, one of its method is trained from scratch and compared with the target alone.

    Example: trtspec train recipes/quickstart.yaml --prompts kinds --max-minutes 10
    """
    from trtspec.bench.documents import save_target_document
    from trtspec.recipe.yaml_edit import check_editable, write_section
    from trtspec.training.external.job import import_result, write_job
    from trtspec.training.plan import TrainRequest, run, section_with

    if trainer and (result or write):
        message = "--trainer cannot be combined with --result or --write"
        raise TrtspecError(message, hint="after training, run again with --result DIR")
    if (trainer or result) and (lora or loss != "greedy"):
        raise TrtspecError(
            "--lora and --loss cannot be combined with --trainer or --result",
            hint="omit them; the trainer's settings are in the job's run.yaml",
        )
    if write:
        check_editable(recipe)  # fail before minutes of training
    settings = TrainSettings(loss, lora, learning_rate, steps, 60 * minutes, seed)
    sizes = Sizes(layers, hidden_size, draft_vocab)
    asked = TrainRequest(recipe, set_ or [], prompts, keep, held_out, out, max_tokens, sampled, settings, sizes)
    if trainer:
        job, record = write_job(asked, trainer, build_bars)
        print_result({**record.model_dump(mode="json"), "out": str(job)}, lambda: show_job(job, record), as_json=json)
        return
    found = import_result(asked, result, build_bars) if result else run(asked, build_bars)
    document = found.as_dict()
    if found.target:
        save_target_document(found.target["sha256"], f"train-{found.method}", document)
    print_result(document, lambda: show(found), as_json=json)
    if write and found.published:
        written = write_section(recipe, "speculation", section_with(asked, found.out))
        note(f"{recipe}: {'speculation updated' if written else 'unchanged'}", "green")
    raise typer.Exit(0 if found.published else GateNotMet.exit_code)


def show_job(out: Path, record: JobRecord) -> None:
    for warning in record.warnings:
        warn(warning)
    skipped = f", {record.left_out} skipped" if record.left_out else ""
    print_line(
        f"{out}: {record.rows} rows, {record.tokens:,} response tokens{skipped}; next: see README.md there", "green"
    )


def show(found: TrainResult) -> None:
    """Print the acceptance before and after on held-out prompts, in total and by kind, and the decision."""
    comparison = found.comparison
    rows = [
        (
            each.kind,
            str(len(each.before.texts)),
            f"{each.before.rate:.0%}",
            f"{each.after.rate:.0%}",
            str(each.before.token_weighted),
            str(each.after.token_weighted),
            f"{each.share:+.0%}",
            each.label,
        )
        for each in (comparison.whole, *comparison.kinds)
    ]
    columns = ("held-out prompts", "", "accepted", "after", "tokens per step", "after", "", "")
    by = f"{found.record['steps']} steps" if "steps" in found.record else f"trained by {found.record['trainer']}"
    how = ", from scratch" if found.from_scratch else ""
    show_table(f"{found.name}: {by}{how}", columns, rows, right=tuple(range(1, 7)))
    if found.left_out:
        print_line(f"{found.left_out} prompts skipped: too long for the engine with --max-tokens", "yellow")
    for refusal in comparison.rejections:
        print_line(f"rejected: {refusal}", "red")
    if found.published:
        print_line(f"{found.out}: published", "green")


panel = "Drafts"
command = train
