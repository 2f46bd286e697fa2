# SPDX-License-Identifier: Apache-2.0
"""Which revisions the entry sends requests to, and how many of them; and what it saw of each.

Two small JSON files of one user: whoever rolls out writes the routes, the entry writes what it observed since then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded, replace_file
from trtspec.serving.gateway.config import EntryConfig, config_of

MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Route:
    """A revision of what is served, and the percent of new requests that it gets.

    `shadow` is the percent of the others' requests that it gets as well, once they are answered.
    """

    revision: int
    share: int
    config: EntryConfig
    shadow: int = 0


@dataclass(frozen=True)
class Routes:
    """All revisions that take requests; every change has a higher `generation`."""

    generation: int
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class Observed:
    """What was seen of one revision in one generation.

    `requests` are those that ended, `failed` those of them that the revision did not answer as it should, `open` those
    that have not ended. `first_token` and `per_token` are seconds, of the last requests with a text; `drafted` and
    `accepted` are tokens.
    """

    requests: int = 0
    failed: int = 0
    open: int = 0
    first_token: tuple[float, ...] = ()
    per_token: tuple[float, ...] = ()
    drafted: int = 0
    accepted: int = 0
    said: str = ""  # of the last that failed


@dataclass(frozen=True)
class Shadowed:
    """What came of requests that were sent to a revision as well, since that began; nobody got its answers.

    `sent` have ended, `failed` of them with no answer; of `compared` greedy texts `different` ones are not what the
    client got. `dropped` would have been sent, had not too much been under way. `old_s` and `new_s` are seconds, in
    pairs, of the last ones. Tokens are `drafted` and `accepted` by the one that answered; those of its shadow are
    `new_drafted` and `new_accepted`.
    """

    sent: int = 0
    failed: int = 0
    compared: int = 0
    different: int = 0
    dropped: int = 0
    old_s: tuple[float, ...] = ()
    new_s: tuple[float, ...] = ()
    drafted: int = 0
    accepted: int = 0
    new_drafted: int = 0
    new_accepted: int = 0
    said: str = ""  # of the last that failed


@dataclass(frozen=True)
class Sight:
    """What the entry saw since it took up the routes of `generation`, by revision, and of the one that gets shadows."""

    generation: int = 0
    revisions: dict[int, Observed] = field(default_factory=dict)
    shadow: Shadowed = field(default_factory=Shadowed)

    def of(self, revision: int) -> Observed:
        return self.revisions.get(revision, Observed())


def write_routes(path: Path, routes: Routes) -> None:
    """Replace the routes."""
    replace_file(path, json.dumps(asdict(routes)).encode())


def read_routes(path: Path) -> Routes:
    """Return the routes; raises TrtspecError where they cannot be read."""
    document = _read(path)
    try:
        routes = [
            Route(
                int(each["revision"]),
                int(each["share"]),
                config_of(each["config"], str(path)),
                int(each.get("shadow", 0)),
            )
            for each in document["routes"]
        ]
        return Routes(int(document["generation"]), tuple(routes))
    except (KeyError, TypeError, ValueError) as error:
        raise TrtspecError(f"not the routes of an entry: {error}", where=str(path)) from None


def write_sight(path: Path, sight: Sight) -> None:
    """Replace what was observed; it is of no use after a crash, so no disk is waited for."""
    replace_file(path, json.dumps(asdict(sight)).encode(), durable=False)


def read_sight(path: Path) -> Sight:
    """Return what was observed; nothing where that was not written yet."""
    try:
        document = _read(path)
        seen = {int(revision): Observed(**_tuples(each)) for revision, each in document["revisions"].items()}
        return Sight(int(document["generation"]), seen, Shadowed(**_tuples(document["shadow"])))
    except (TrtspecError, KeyError, TypeError, ValueError, AttributeError):
        return Sight()


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


def shares_of(old: Route, new: Route, share: int) -> tuple[Route, ...]:
    """Return the two with `share` percent for the new one; what gets none is kept for the requests it has."""
    return (replace(old, share=100 - share), replace(new, share=share))


def next_of(routes: Sequence[Route], served: dict[int, int]) -> Route:
    """Return which revision the next request goes to: the one that is furthest behind its share of `served`."""
    total = 1 + sum(served.get(route.revision, 0) for route in routes)
    return max(
        (route for route in routes if route.share),
        key=lambda route: route.share * total / 100 - served.get(route.revision, 0),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_bounded(path, MAX_BYTES))
    except (OSError, ValueError) as error:
        raise TrtspecError(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(document, dict):
        raise TrtspecError("no JSON object", where=str(path))
    return document
