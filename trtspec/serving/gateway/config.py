# SPDX-License-Identifier: Apache-2.0
"""The gateway's JSON files: its configuration, the routing table, and the statistics that it reports per revision.

The process that starts the gateway writes the configuration, the rollout controller writes the routes, and the gateway
writes its statistics since then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway; a recipe's `serving.limits` sets some of them, with the same defaults.

    Attributes:
        max_texts: completions in progress; more are rejected with 503.
        max_choices: completions of one request, prompts times `n`.
        requests_per_minute: per API key, or for all clients if no keys are configured; 0 means no limit.
        timeout_s: limit for a whole request.
        stall_s: limit between two tokens.
        write_timeout_s: how long a client may stop reading before its request is ended.
        body_timeout_s: limit for receiving the body.
        drain_s: how long open requests may continue after SIGTERM.
        resume_s: how long to look for a server that can resume a broken completion.
    """

    max_body_bytes: int = 4 << 20
    max_texts: int = 144
    max_choices: int = 16
    requests_per_minute: int = 0
    timeout_s: float = 600.0
    stall_s: float = 30.0
    write_timeout_s: float = 1.0
    body_timeout_s: float = 10.0
    drain_s: float = 10.0
    resume_s: float = 20.0


@dataclass(frozen=True)
class GatewayConfig:
    """The configuration of one gateway: its address, its Triton server and its model.

    Attributes:
        grpc: Triton's address, such as 127.0.0.1:8001.
        model: the model name in OpenAI requests.
        triton_model: the Triton model that generates completions.
        text_level: whether that model's input is text instead of token ids.
        tokenizer: directory of the artifact's tokenizer.
        draft_len: maximum number of sequentially drafted tokens; 0 if the recipe does not set it.
        vocab_size: size of the model's logits including padding; 0 for the number of tokens in the tokenizer.
        stop_ids: end ids after the first, for an engine that stops at a single id.
        keys_file: file with one API key per line; empty for none.
        fingerprint: `system_fingerprint` of responses.
        same_text: equal for revisions with identical greedy output; empty if unknown.
        routes_file: the revisions that share the traffic (`routing_state`); empty for one revision.
    """

    grpc: str
    port: int
    model: str
    triton_model: str
    tokenizer: str
    max_seq_len: int
    max_input_len: int
    text_level: bool = False
    draft_len: int = 0
    vocab_size: int = 0
    stop_ids: tuple[int, ...] = ()
    host: str = LOOPBACK
    keys_file: str = ""
    fingerprint: str = ""
    same_text: str = ""
    routes_file: str = ""
    limits: GatewayLimits = field(default_factory=GatewayLimits)


def load_config(path: Path) -> GatewayConfig:
    """Read a configuration file; raises TrtspecError if it is invalid."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise TrtspecError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise TrtspecError(f"not JSON: {error}", where=str(path)) from None
    return parse_gateway_config(document, str(path))


def parse_gateway_config(document: dict[str, Any], where: str) -> GatewayConfig:
    """Parse a configuration document; raises TrtspecError if it is invalid."""
    try:
        limits = _build(GatewayLimits, document.get("limits", {}))
        made: GatewayConfig = _build(
            GatewayConfig, {**document, "limits": limits, "stop_ids": tuple(document.get("stop_ids", ()))}
        )
        return made
    except (TypeError, AttributeError) as error:
        raise TrtspecError(f"not a gateway configuration: {error}", where=where) from None


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass after checking the types of its values against its defaults."""
    for each in fields(kind):
        if each.name in values and not _fits(values[each.name], each.default):
            raise TypeError(f"{each.name} is {values[each.name]!r}, expected a value like {each.default!r}")
    return kind(**values)


def _fits(given: Any, default: Any) -> bool:
    if not isinstance(default, (int, float, str)):
        return True
    return type(given) is type(default) or (isinstance(default, float) and type(given) is int)


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


@dataclass
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


@dataclass
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
