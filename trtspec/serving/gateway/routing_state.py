# SPDX-License-Identifier: Apache-2.0
"""The routing table of the gateway, and the statistics that it reports per revision.

Two small JSON files: the rollout controller writes the routes, and the gateway writes its statistics since then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded, replace_file
from trtspec.serving.gateway.config import GatewayConfig, parse_gateway_config

MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Route:
    """A revision and the percent of new requests that it gets.

    `shadow` is the percent of the other revisions' requests to mirror to it after they finish.
    """

    revision: int
    share: int
    config: GatewayConfig
    shadow: int = 0


@dataclass(frozen=True)
class Routes:
    """All revisions that take requests; `generation` increases with every change."""

    generation: int
    routes: tuple[Route, ...]


@dataclass(frozen=True)
class BackendStats:
    """Statistics of one revision in one generation.

    `requests` finished, of which `failed` because of the revision; `open` are in progress. `first_token` and
    `per_token` are seconds of the latest requests with output; `drafted` and `accepted` are tokens.
    """

    requests: int = 0
    failed: int = 0
    open: int = 0
    first_token: tuple[float, ...] = ()
    per_token: tuple[float, ...] = ()
    drafted: int = 0
    accepted: int = 0
    said: str = ""  # message of the latest failure


@dataclass(frozen=True)
class MirrorStats:
    """Statistics of the mirrored requests since mirroring began; the responses are discarded.

    Attributes:
        sent, failed: finished requests, and the failures among them.
        compared, different: compared greedy completions, and those that differ from the client's.
        dropped: requests not mirrored because of load.
        old_s, new_s: seconds of the latest requests, in pairs.
        drafted, accepted: tokens of the live revision.
        new_drafted, new_accepted: tokens of the mirrored revision.
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
    said: str = ""  # message of the latest failure


@dataclass(frozen=True)
class RouterStats:
    """The gateway's statistics since it loaded the routes of `generation`: per revision, and of mirroring."""

    generation: int = 0
    revisions: dict[int, BackendStats] = field(default_factory=dict)
    shadow: MirrorStats = field(default_factory=MirrorStats)

    def of(self, revision: int) -> BackendStats:
        return self.revisions.get(revision, BackendStats())


def write_routes(path: Path, routes: Routes) -> None:
    """Replace the routes file."""
    replace_file(path, json.dumps(asdict(routes)).encode())


def read_routes(path: Path) -> Routes:
    """Read the routes file; raises TrtspecError if it is unreadable or invalid."""
    document = _read(path)
    try:
        routes = [
            Route(
                int(each["revision"]),
                int(each["share"]),
                parse_gateway_config(each["config"], str(path)),
                int(each.get("shadow", 0)),
            )
            for each in document["routes"]
        ]
        return Routes(int(document["generation"]), tuple(routes))
    except (KeyError, TypeError, ValueError) as error:
        raise TrtspecError(f"not a routes file: {error}", where=str(path)) from None


def write_router_stats(path: Path, sight: RouterStats) -> None:
    """Replace the statistics file without fsync, because it is useless after a crash."""
    replace_file(path, json.dumps(asdict(sight)).encode(), durable=False)


def read_router_stats(path: Path) -> RouterStats:
    """Read the statistics file; return empty statistics if it is missing or invalid."""
    try:
        document = _read(path)
        seen = {int(revision): BackendStats(**_tuples(each)) for revision, each in document["revisions"].items()}
        return RouterStats(int(document["generation"]), seen, MirrorStats(**_tuples(document["shadow"])))
    except (TrtspecError, KeyError, TypeError, ValueError, AttributeError):
        return RouterStats()


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


def split_shares(old: Route, new: Route, share: int) -> tuple[Route, ...]:
    """Return both routes with `share` percent for the new one; a route with 0 percent finishes its open requests."""
    return (replace(old, share=100 - share), replace(new, share=share))


def next_route(routes: Sequence[Route], served: dict[int, int]) -> Route:
    """Return the route of the next request: the one furthest behind its share of `served`."""
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
        raise TrtspecError("not a JSON object", where=str(path))
    return document
