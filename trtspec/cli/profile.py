# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile` and `trtspec tune`: measure which draft, draft length and options are fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli import completing, load
from trtspec.cli.layout import pluralize
from trtspec.cli.measuring import measure_on_pool, recipe_measurements
from trtspec.cli.options import Baseline, Json, On, Prompts, Recipes, Set
from trtspec.cli.progress import build_bars, counter
from trtspec.cli.render import note, print_line, print_result, show_chart, show_table
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.profile.candidates import ServerSet
    from trtspec.bench.profile.document import Profile, ServerProfile
    from trtspec.bench.profile.recommend import Recommendation
    from trtspec.bench.profile.tune import Tuning

Samples = Annotated[int, typer.Option("--num-prompts", help="Maximum number of prompts, sampled with --seed.", min=1)]
MaxTokens = Annotated[int, typer.Option(help="New tokens per prompt.", min=2)]
MaxDraftLen = Annotated[int, typer.Option(help="Maximum draft length to try.", min=1, max=64)]
Concurrency = Annotated[int, typer.Option(help="Concurrency to optimize for.", min=1)]
Seed = Annotated[int, typer.Option(help="Random seed for sampling prompts.")]
Write = Annotated[bool, typer.Option("--write", help="Write the recommendation into the recipe.")]


def show_decision(found: Recommendation) -> None:
    from trtspec.bench.decision import decide

    verdict = decide(found.proposal)
    print_line(verdict.text, verdict.style)


def show_recommendation(found: Recommendation, switches_off: str = "") -> None:
    """Print the reason and the recipe section; `switches_off` is the recipe's current method or ""."""
    import yaml

    print_line(found.why)
    if found.candidate is None and switches_off:
        print_line(f"--write would disable {switches_off}", "yellow")
    sys.stdout.write(yaml.safe_dump({"speculation": found.speculation}, sort_keys=False, default_flow_style=None))


def write_recommendation(recipe: Path, found: Recommendation, was: str = "") -> None:
    """Write the recommended section into the recipe; `was` is the recipe's previous method or ""."""
    from trtspec.recipe.yaml_edit import write_section

    written = write_section(recipe, "speculation", found.speculation)
    if written and found.candidate is None:
        note(f"{recipe}: speculation disabled{f' (was {was})' if was else ''}: {found.why}", "yellow")
        return
    note(f"{recipe}: {'speculation updated' if written else 'unchanged'}", "green")


def show_profile(found: Profile) -> None:
    """Print the measurements by candidate and by prompt category, and the recommendation."""
    from trtspec.bench.profile.recommend import rate_candidate

    show_decision(found.recommendation)
    batch = found.recommendation.batch
    batches = found.measured[0].batches if found.measured else []
    rows = []
    for each in sorted(found.measured, key=lambda each: -each.best(batch).expected.value):
        best = each.best(batch)
        acceptance = each.acceptance[best.draft_len]
        faster = [f"{at.expected.value:.2f}x ({at.draft_len})" for at in map(each.best, batches)]
        rows.append(
            (
                each.candidate.name,
                f"{acceptance.depth_rate:.0%}",
                str(acceptance.token_weighted),
                *faster,
                rate_candidate(each, batch),
            )
        )
    columns = ("draft", "accepted", "tokens per step", *(f"at {pluralize(each, 'request')}" for each in batches), "")
    title = f"{found.name}: {len(found.kinds)} prompts, {found.tokens} tokens of the target"
    show_table(title, columns, rows, right=tuple(range(1, len(columns) - 1)))
    _show_chart(found)
    if found.too_long:
        note(f"{pluralize(found.too_long, 'prompt')} skipped: too long for the engine with the response", "yellow")
    for name, why in found.left_out.items():
        note(f"{name} was skipped: {why}", "yellow")
    if found.parity:
        note(found.parity.detail, "dim")
    _show_kinds(found)
    if found.server:
        _show_server(found.server)
    show_recommendation(found.recommendation, found.drafts_with)


def _show_chart(found: Profile) -> None:
    """Plot the speed-up of each candidate by load, if there are several loads."""
    candidates = dict(zip(ascii_lowercase, found.measured, strict=False))
    batches = found.measured[0].batches if found.measured else ()
    if len(batches) > 1:
        rows = [
            (str(batch), [(letter, each.best(batch).expected.value) for letter, each in candidates.items()])
            for batch in batches
        ]
        letters = {letter: each.candidate.name for letter, each in candidates.items()}
        show_chart("speed-up by concurrency; 1x is the target alone", "requests", rows, letters)


def _show_kinds(found: Profile) -> None:
    chosen = found.chosen
    kinds = sorted(set(found.kinds))
    if chosen is None or len(kinds) < 2:
        return
    own = {kind: chosen.for_category(kind) for kind in kinds}
    rows = [
        (kind or "(none)", str(len(each.texts)), f"{each.depth_rate:.0%}", str(each.token_weighted))
        for kind, each in own.items()
    ]
    show_table("", ("kind", "prompts", "accepted", "tokens per step"), rows, right=(1, 2, 3))


def _show_server(server: ServerProfile) -> None:
    """Show the speed of the server with its draft length and without speculation."""
    speeds = server.tokens_per_s
    rows = [
        (str(batch), f"{speeds[batch, 0]:,.0f}", f"{speed:,.0f}", f"{speed / speeds[batch, 0]:.2f}x")
        for (batch, length), speed in sorted(speeds.items())
        if length == server.draft_len
    ]
    columns = ("concurrency", "target alone, tokens/s", f"draft_len {server.draft_len}", "measured")
    show_table(f"{server.url}, model {server.model or '-'}", columns, rows, right=(0, 1, 2, 3))
    if server.failures:
        note(f"{pluralize(len(server.failures), 'request')} failed and were excluded: {server.failures[0]}", "yellow")


def profile(
    context: typer.Context,
    recipe: Recipes,
    set_: Set = None,
    on: On = None,
    prompts: Prompts = None,
    drafts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Additional drafts to try: directories or hub ids.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Methods to try (default: the recipe's and all draft-free ones)."),
    ] = None,
    samples: Samples = 64,
    max_tokens: MaxTokens = 64,
    max_draft_len: MaxDraftLen = 10,
    concurrency: Concurrency = 1,
    seed: Seed = 0,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL-or-NAME",
            help="Measure a running server of the recipe; repeat for other draft lengths.",
            autocompletion=completing.deployments,
        ),
    ] = None,
    baseline: Baseline = None,
    api: load.Api = None,
    model: load.Model = None,
    key_env: load.KeyEnv = None,
    write: Write = False,
    json: Json = False,
) -> None:
    """Measure which draft and draft length are fastest.

    The target generates greedy responses to your prompts once on the torch engine. Each candidate drafts at every
    position of these responses, which gives its acceptance for every draft length; steps are timed on this machine.
    With --server, the acceptance and the speed are measured from the responses and streams of a running server.

    Example: trtspec profile recipes/quickstart.yaml --num-prompts 8 --methods draft_target,ngram
    """
    from trtspec.bench.profile.candidates import ProfileRequest, ProgressUI, SearchLimits
    from trtspec.bench.profile.engine_profiler import run as profile_in_process
    from trtspec.recipe.yaml_edit import check_editable

    if on or len(recipe) > 1:
        if server or write:
            raise TrtspecError("--server and --write cannot be combined with --on or several recipes", hint="omit them")
        measure_on_pool(recipe_measurements(context, recipe, set_ or ()), on, _summary, json=json)
        return
    (one,) = recipe
    servers = _servers(server, baseline, api, model, key_env)
    if servers and (drafts is not None or methods is not None):
        raise TrtspecError(
            "--server cannot be combined with --drafts or --methods", hint="a server uses its own method"
        )
    if write:
        check_editable(one)  # fail before minutes of measuring
    limits = SearchLimits(samples, max_tokens, max_draft_len, concurrency, seed)
    asked = ProfileRequest(one, set_ or [], prompts, _names(drafts), _names(methods), limits)
    screen = ProgressUI(build_bars, counter)
    if servers:
        from trtspec.bench.profile.server_profile import run as profile_servers  # needs aiohttp

        found = profile_servers(asked, servers, screen)
    else:
        found = profile_in_process(asked, screen)
    _report(found, "profile", lambda: show_profile(found), one if write else None, json=json)


def _report(found: Profile | Tuning, name: str, show: Callable[[], None], write_to: Path | None, *, json: bool) -> None:
    """Save the document under a name, show the result, and with `write_to` change that recipe as recommended."""
    from trtspec.bench.profile.document import save_profile

    document = found.as_dict()
    save_profile(document, name)
    print_result(document, show, as_json=json)
    if write_to:
        write_recommendation(write_to, found.recommendation, found.drafts_with)


def _summary(document: dict[str, Any]) -> str:
    """Return the recommendation of a document of `profile` or `tune` in one line."""
    found = document.get("recommendation")
    return str(found.get("why", "")) if isinstance(found, dict) else ""


def _servers(
    server: list[str] | None, baseline: str | None, api: str | None, model: str | None, key_env: str | None
) -> ServerSet | None:
    from trtspec.bench.profile.candidates import ServerSet

    if not server:
        if baseline or api or model or key_env:
            raise TrtspecError("--baseline, --api, --model and --key-env require --server", hint="add --server URL")
        return None
    (served, deployed), *others = (load.resolve_server(each, api, model or "", key_env) for each in server)
    alone = load.resolve_server(baseline, api, "", key_env)[0] if baseline else None
    artifact = Path(deployed["artifact"]) if deployed else None
    return ServerSet(served, alone, artifact, [other for other, _ in others])


def _names(written: str | None) -> list[str] | None:
    return [name.strip() for name in written.split(",") if name.strip()] if written is not None else None


def tune(
    context: typer.Context,
    recipe: Recipes,
    set_: Set = None,
    on: On = None,
    prompts: Prompts = None,
    samples: Samples = 64,
    max_tokens: MaxTokens = 64,
    max_draft_len: MaxDraftLen = 10,
    concurrency: Concurrency = 1,
    seed: Seed = 0,
    write: Write = False,
    json: Json = False,
) -> None:
    """Find the fastest draft length, tree and options.

    Uses successive halving: all variants are measured on a few of your prompts, the better half on twice as many, and
    so on. An interrupted run resumes where it stopped.

    Example: trtspec tune recipes/quickstart.yaml --num-prompts 16
    """
    from trtspec.bench.profile.candidates import ProfileRequest, ProgressUI, SearchLimits
    from trtspec.bench.profile.tune import run as run_tuning
    from trtspec.recipe.yaml_edit import check_editable

    if on or len(recipe) > 1:
        if write:
            raise TrtspecError("--write cannot be combined with --on or several recipes", hint="omit it")
        measure_on_pool(recipe_measurements(context, recipe, set_ or ()), on, _summary, json=json)
        return
    (one,) = recipe
    if write:
        check_editable(one)  # fail before minutes of measuring
    limits = SearchLimits(samples, max_tokens, max_draft_len, concurrency, seed)
    found = run_tuning(ProfileRequest(one, set_ or [], prompts, None, None, limits), ProgressUI(build_bars, counter))
    _report(found, f"tune-{found.method}", lambda: show_tuning(found), one if write else None, json=json)


def show_tuning(found: Tuning) -> None:
    show_decision(found.recommendation)
    for rung in found.rungs:
        rows = []
        for place, (arm, _) in enumerate(rung.scores):
            best = found.best_in_round(arm, rung)
            cells = (str(best.draft_len), str(best.expected)) if best else ("-", "skipped")
            rows.append(
                (arm.settings, *cells, "continues" if place < rung.kept and rung is not found.rungs[-1] else "")
            )
        title = f"{found.name}: {pluralize(rung.texts, 'prompt')}"
        show_table(title, ("options", "draft_len", "expected speed-up", ""), rows, right=(1, 2))
    for name, why in found.left_out.items():
        note(f"{name} was skipped: {why}", "yellow")
    show_recommendation(found.recommendation, found.drafts_with)


panel = "Decide"
commands = (profile, tune)
