# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json

if TYPE_CHECKING:
    from trtspec.measure.bench import Comparison, OnProgress


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="URL-or-ARTIFACT",
            help="A server's http:// address, a deployment's name, or an artifact.",
            autocompletion=completing.deployments,
        ),
    ],
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl of prompts, instead of the artifact's own.")] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.", min=1)] = 64,
    runs: Annotated[int, typer.Option(help="Runs of each side; the median counts.", min=1)] = 3,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="URL-or-NAME",
            help="A server without speculation, for an engine that drafts whatever is asked.",
            autocompletion=completing.deployments,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure speculation against the target alone, on the same engine in the same run, one request at a time.

    Example: trtspec bench build/quickstart
    """
    from trtspec.cli.render import counter, print_json
    from trtspec.errors import TrtspecError

    url, root = _find(what)
    other = _find(baseline)[0] if baseline else None
    if baseline and not (url and other):
        raise TrtspecError("--baseline compares two servers", hint="deploy both, and give their names or addresses")
    with counter() as on_progress:
        if url:
            comparison = _measure_server(url, root, other, prompts, max_tokens, runs, on_progress)
        else:
            comparison = _measure_artifact(Path(what), prompts, max_tokens, runs, on_progress)
    if json:
        print_json(comparison.as_dict())
    show(comparison, url or what)


def _find(what: str) -> tuple[str, Path | None]:
    """Return the address of a server and its artifact, which only a name leads to; of an artifact neither."""
    if "://" in what:
        return what, None
    if Path(what).exists() or "/" in what:
        return "", None
    from trtspec.deploy.base import status

    document = status(what)
    return document["endpoints"]["http"], Path(document["artifact"])


def _measure_server(
    url: str,
    root: Path | None,
    baseline: str | None,
    prompts: Path | None,
    max_tokens: int,
    runs: int,
    on_progress: OnProgress,
) -> Comparison:
    from trtspec.artifacts.manifest import load_manifest
    from trtspec.measure.artifact import artifact_prompts
    from trtspec.measure.bench import measure_server
    from trtspec.triton.client import Client

    texts = [prompt.text for prompt in artifact_prompts(root, prompts)]
    acceptance = load_manifest(root).recipe.speculation.acceptance if root else "unknown"
    other = Client.at(baseline) if baseline else None
    return measure_server(Client.at(url), texts, max_tokens, runs, on_progress, acceptance, other)


def _measure_artifact(
    root: Path, prompts: Path | None, max_tokens: int, runs: int, on_progress: OnProgress
) -> Comparison:
    from trtspec.measure.artifact import artifact_prompts, open_artifact
    from trtspec.measure.bench import measure_engine

    texts = [prompt.text for prompt in artifact_prompts(root, prompts)]
    with open_artifact(root) as artifact:
        return measure_engine(artifact, texts, max_tokens, runs, on_progress)[0]


def show(comparison: Comparison, what: str) -> None:
    """Show the table, and for a server how to ask it oneself."""
    from trtspec.cli.render import say, show_table

    sides = (("target alone", 1.0, comparison.baseline), ("speculative", comparison.speedup, comparison.speculative))
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
    same, total = comparison.identical_texts, comparison.prompts
    say(f"identical text: {'yes' if same == total else 'NO'} ({same} of {total})", "green" if same == total else "red")
    if what.startswith("http://"):
        body = json_module.dumps({"text_input": '{"id": 7, "name":', "max_tokens": 32})
        say(f"\ncurl -s {what.rstrip('/')}/v2/models/ensemble/generate -d '{body}'")


command = bench
