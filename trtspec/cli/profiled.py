# SPDX-License-Identifier: Apache-2.0
"""Terminal output of a profile: candidates, plot by load, prompt categories, server speed and recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.cli.layout import pluralize
from trtspec.cli.recommended import show_recommendation, show_verdict
from trtspec.cli.render import note, show_chart, show_table

if TYPE_CHECKING:
    from trtspec.bench.profile.document import Profile, ServerProfile


def show(found: Profile) -> None:
    """Print the measurements by candidate and by prompt category, and the recommendation."""
    from trtspec.bench.profile.recommend import candidate_verdict

    show_verdict(found.recommendation)
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
                candidate_verdict(each, batch),
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
    from string import ascii_lowercase

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
    own = {kind: chosen.of_kind(kind) for kind in kinds}
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
