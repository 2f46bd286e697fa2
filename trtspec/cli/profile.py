# SPDX-License-Identifier: Apache-2.0
"""`trtspec profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli import completing
from trtspec.cli import load_options as load
from trtspec.cli.options import Baseline, Json, Prompts, Recipe, Set
from trtspec.cli.recommended import (
    Concurrency,
    MaxDraftLen,
    MaxTokens,
    Samples,
    Seed,
    Write,
    write_recommendation,
)
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.profile.document import Profile
    from trtspec.bench.profile.options import ProfileRequest, ProgressUI, ServerSet


def profile(
    recipe: Recipe,
    set_: Set = None,
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
    from trtspec.bench.profile.metadata import save_profile
    from trtspec.bench.profile.options import ProfileRequest, ProgressUI, SearchLimits
    from trtspec.cli.profiled import show
    from trtspec.cli.progress import build_bars, counter
    from trtspec.cli.render import print_json
    from trtspec.recipe.yaml_edit import check_editable

    servers = _servers(server, baseline, api, model, key_env)
    if servers and (drafts is not None or methods is not None):
        raise TrtspecError(
            "--server cannot be combined with --drafts or --methods", hint="a server uses its own method"
        )
    if write:
        check_editable(recipe)  # fail before minutes of measuring
    limits = SearchLimits(samples, max_tokens, max_draft_len, concurrency, seed)
    asked = ProfileRequest(recipe, set_ or [], prompts, _names(drafts), _names(methods), limits)
    found = _run(asked, servers, ProgressUI(build_bars, counter))
    document = found.as_dict()
    save_profile(document, "profile")
    if json:
        print_json(document)
    else:
        show(found)
    if write:
        write_recommendation(recipe, found.recommendation, found.drafts_with)


def _servers(
    server: list[str] | None, baseline: str | None, api: str | None, model: str | None, key_env: str | None
) -> ServerSet | None:
    from trtspec.bench.profile.options import ServerSet
    from trtspec.cli.loading import resolve_server

    if not server:
        if baseline or api or model or key_env:
            raise TrtspecError("--baseline, --api, --model and --key-env require --server", hint="add --server URL")
        return None
    (served, deployed), *others = (resolve_server(each, api, model or "", key_env) for each in server)
    alone = resolve_server(baseline, api, "", key_env)[0] if baseline else None
    artifact = Path(deployed["artifact"]) if deployed else None
    return ServerSet(served, alone, artifact, [other for other, _ in others])


def _run(asked: ProfileRequest, servers: ServerSet | None, screen: ProgressUI) -> Profile:
    if servers:
        from trtspec.bench.profile import server_profile as served

        return served.run(asked, servers, screen)
    from trtspec.bench.profile import run as profile

    return profile.run(asked, screen)


def _names(written: str | None) -> list[str] | None:
    return [name.strip() for name in written.split(",") if name.strip()] if written is not None else None


panel = "Decide"
command = profile
