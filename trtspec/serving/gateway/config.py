# SPDX-License-Identifier: Apache-2.0
"""The gateway's JSON files: its configuration, the routing table, and the statistics of each revision.

The process that starts the gateway writes the configuration, and the rollout controller writes the routing table. The
gateway writes the statistics since it loaded the routing table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from trtspec.core.errors import TrtspecError
from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway; a recipe's `serving.limits` sets some of them, with the same defaults.

    Attributes:
        max_texts: maximum number of completions in progress; further requests are rejected with status 503.
        max_choices: maximum number of completions per request: prompts times `n`.
        requests_per_minute: limit per API key, or for all clients if no keys are configured; 0 means no limit.
        timeout_s: time limit for a whole request.
        stall_s: time limit between two tokens.
        write_timeout_s: time that a client may stop reading before its request is cancelled.
        body_timeout_s: time limit for receiving the body.
        drain_s: time that open requests may continue after SIGTERM.
        resume_s: time limit for finding a server that can resume an interrupted completion.
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
        grpc: Triton's gRPC address, such as 127.0.0.1:8001.
        model: the model name in OpenAI requests.
        triton_model: the Triton model that generates completions.
        text_level: true if the input of `triton_model` is text instead of token ids.
        tokenizer: directory of the artifact's tokenizer.
        draft_len: maximum number of sequentially drafted tokens; 0 if the recipe does not set it.
        vocab_size: number of logits per position including padding; 0 for the size of the tokenizer's vocabulary.
        stop_ids: end token ids after the first, for an engine that stops at a single id.
        keys_file: file with one API key per line; empty for none.
        fingerprint: `system_fingerprint` of responses.
        same_text: key that is equal for revisions with identical greedy output; empty if unknown.
        routes_file: file with the routing table (`Routes`); empty for a single revision.
        processes: number of gateway processes behind the address.
        tool_format: format of the model's tool calls (`tool_calls.FORMATS`); empty: recognized by the chat template.
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
    tool_format: str = ""
    processes: int = 1
    limits: GatewayLimits = field(default_factory=GatewayLimits)


def load_config(path: Path) -> GatewayConfig:
    """Read a gateway configuration file; raises TrtspecError if it is unreadable or invalid."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise TrtspecError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise TrtspecError(f"not JSON: {error}", where=str(path)) from None
    return parse_gateway_config(document, str(path))


def parse_gateway_config(document: dict[str, Any], where: str) -> GatewayConfig:
    """Parse a gateway configuration; raises TrtspecError, located at `where`, if it is invalid."""
    try:
        limits = _build(GatewayLimits, document.get("limits", {}))
        made: GatewayConfig = _build(
            GatewayConfig, {**document, "limits": limits, "stop_ids": tuple(document.get("stop_ids", ()))}
        )
        return made
    except (TypeError, AttributeError) as error:
        raise TrtspecError(f"not a gateway configuration: {error}", where=where) from None


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    """Create a dataclass; raises TypeError if a value has another type than the default of its field."""
    for each in fields(kind):
        if each.name in values and not _fits(values[each.name], each.default):
            raise TypeError(f"{each.name} is {values[each.name]!r}, expected a value like {each.default!r}")
    return kind(**values)


def _fits(given: Any, default: Any) -> bool:
    if not isinstance(default, (int, float, str)):
        return True
    return type(given) is type(default) or (isinstance(default, float) and type(given) is int)


MAX_BYTES = 4 << 20
T = TypeVar("T", "BackendStats", "MirrorStats")


@dataclass(frozen=True)
class Route:
    """A revision in the routing table.

    Attributes:
        share: percentage of new requests that are routed to the revision.
        shadow: percentage of the other revisions' requests that are mirrored to it after they finish; 0 for none.
    """

    revision: int
    share: int
    config: GatewayConfig
    shadow: int = 0


@dataclass(frozen=True)
class Routes:
    """The routing table: all revisions that accept requests; `generation` increases with every change."""

    generation: int
    routes: tuple[Route, ...]


@dataclass
class BackendStats:
    """Statistics of one revision since the current routing table was loaded.

    Attributes:
        requests, failed: numbers of finished requests, and of those that failed because of the revision.
        open: number of requests in progress.
        first_token, per_token: latencies in seconds of the latest requests with output.
        drafted, accepted: numbers of draft tokens.
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
    """Statistics of mirrored requests since mirroring began; the responses are discarded.

    Attributes:
        sent, failed: numbers of finished requests, and of the failed ones among them.
        compared, different: numbers of compared greedy completions, and of those that differ from the client's.
        dropped: number of requests that were not mirrored because of load.
        old_s, new_s: durations in seconds of the latest requests on the live and the mirrored revision, in pairs.
        drafted, accepted: numbers of draft tokens of the live revision.
        new_drafted, new_accepted: numbers of draft tokens of the mirrored revision.
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
    """The gateway's statistics per revision and of mirroring, since it loaded the routes of `generation`."""

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
    """Write the statistics file atomically, without fsync because it is not needed after a crash."""
    replace_file(path, json.dumps(asdict(sight)).encode(), durable=False)


def router_stats_files(path: Path) -> list[Path]:
    """Return the existing statistics files: `path` of the first gateway process, and one of each other process."""
    others = (each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdigit())
    return [path, *others] if path.exists() else []


def read_router_stats(path: Path) -> RouterStats:
    """Return the sums of all processes' statistics, or empty ones if none can be read.

    The generation is the lowest of all processes, which all of them have loaded.
    """
    parts = [_read_process_stats(each) for each in router_stats_files(path)]
    generation = min((each.generation for each in parts), default=0)
    return _sum_stats(generation, [each for each in parts if each.generation == generation])


def _sum_stats(generation: int, parts: Sequence[RouterStats]) -> RouterStats:
    if len(parts) == 1:
        return parts[0]
    revisions: dict[int, BackendStats] = {}
    shadow = MirrorStats()
    for part in parts:
        shadow = _add(shadow, part.shadow)
        for revision, seen in part.revisions.items():
            revisions[revision] = _add(revisions.get(revision, BackendStats()), seen)
    return RouterStats(generation, revisions, shadow)


def _add(one: T, other: T) -> T:
    """Add the fields of two statistics; of two messages, one is kept."""
    sums: dict[str, Any] = {}
    for name in (each.name for each in fields(one)):
        first, second = getattr(one, name), getattr(other, name)
        sums[name] = second or first if isinstance(first, str) else first + second
    return type(one)(**sums)


def _read_process_stats(path: Path) -> RouterStats:
    try:
        document = _read(path)
        seen = {int(revision): BackendStats(**_tuples(each)) for revision, each in document["revisions"].items()}
        return RouterStats(int(document["generation"]), seen, MirrorStats(**_tuples(document["shadow"])))
    except (TrtspecError, KeyError, TypeError, ValueError, AttributeError):
        return RouterStats()


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


def split_shares(old: Route, new: Route, share: int) -> tuple[Route, ...]:
    """Return both routes, with `share` percent of the requests for `new` and the rest for `old`."""
    return (replace(old, share=100 - share), replace(new, share=share))


def next_route(routes: Sequence[Route], served: dict[int, int]) -> Route:
    """Return the route of the next request, the one furthest below its share; `served` counts past requests."""
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
