# SPDX-License-Identifier: Apache-2.0
"""The revisions behind a gateway: routing, failover, mirror traffic and statistics.

Each request is routed to one revision. If that revision fails before the first byte of the response, another revision
answers the request, so no response mixes two revisions.

Finished requests may be mirrored to a candidate revision to compare the outputs. Clients never wait for mirrored
requests. At most MAX_CONCURRENT of them run at a time, and none start while the gateway is busy; skipped requests are
counted. Completions are compared by digest and not stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.serving.gateway.admission import AdmissionControl
from trtspec.serving.gateway.completions import CompletionJob, Completions, ResumeFn, is_greedy
from trtspec.serving.gateway.config import (
    BackendStats,
    GatewayConfig,
    MirrorStats,
    Route,
    RouterStats,
    Routes,
    next_route,
    read_routes,
    router_stats_files,
    write_router_stats,
)
from trtspec.serving.gateway.errors import SHUTTING_DOWN, ApiError
from trtspec.serving.gateway.http import HttpExchange
from trtspec.serving.gateway.prompts import PromptReader
from trtspec.serving.gateway.shared_state import SharedState
from trtspec.serving.gateway.triton import TritonClient

log = logging.getLogger(__name__)

MAX_CONCURRENT = 4  # mirrored requests in progress
MAX_PAIRS = 1000  # latency pairs kept


class TrafficMirror:
    """Mirrors `share` percent of the other revisions' requests to one revision, unless `is_busy` returns True."""

    def __init__(self, completions: Completions, is_busy: Callable[[], bool]) -> None:
        self.share = 0
        self._completions, self._is_busy = completions, is_busy
        self._seen, self._answered = MirrorStats(), 0
        self._pairs: deque[tuple[float, float]] = deque(maxlen=MAX_PAIRS)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def mirror_stats(self) -> MirrorStats:
        old_s, new_s = zip(*self._pairs, strict=True) if self._pairs else ((), ())
        return replace(self._seen, old_s=old_s, new_s=new_s)

    def offer(self, body: dict[str, Any], live: CompletionJob) -> None:
        """Mirror a finished request in the background if it belongs to the share and capacity is free."""
        self._answered += 1
        if (self._answered * self.share) // 100 == ((self._answered - 1) * self.share) // 100:
            return
        if len(self._tasks) >= MAX_CONCURRENT or self._is_busy():
            self._seen.dropped += 1
            return
        task = asyncio.ensure_future(self._send(body, live))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Cancel the mirrored requests in progress without counting them, so that a rollback does not wait."""
        for task in self._tasks:
            task.cancel()

    async def _send(self, body: dict[str, Any], live: CompletionJob) -> None:
        try:
            job = await self._completions.read(body, chat=live.chat)
            began = time.monotonic()
            await self._completions.generate_silent(job)
            job.seconds = time.monotonic() - began
        except ApiError as error:
            self._fail(error.message)
        except Exception as error:
            log.exception("a mirrored request failed")
            self._fail(type(error).__name__)
        else:
            self._compare(live, job)

    def _fail(self, message: str) -> None:
        self._seen.sent += 1
        self._seen.failed += 1
        self._seen.said = message

    def _compare(self, old: CompletionJob, new: CompletionJob) -> None:
        seen = self._seen
        self._pairs.append((old.seconds, new.seconds))
        seen.sent += 1
        if is_greedy(old.asked):
            seen.compared += len(old.grown)
            seen.different += sum(one.digest != other.digest for one, other in zip(old.grown, new.grown, strict=True))
        seen.drafted += old.drafted
        seen.accepted += old.accepted
        seen.new_drafted += new.drafted
        seen.new_accepted += new.accepted


MAX_SAMPLES = 1000  # latency samples kept per revision
RESUME_EVERY_S = 0.25
CLIENT_ERROR_STATUSES = (400, 404, 422)  # statuses of invalid requests


class RevisionBackend:
    """One revision behind the gateway: its Triton client, tokenizer and statistics."""

    def __init__(self, route: Route, prompts: PromptReader, gate: AdmissionControl) -> None:
        config = route.config
        self.route, self.prompts = route, prompts
        self.triton = TritonClient(config.grpc, config.triton_model, config.limits.timeout_s)
        self.completions = Completions(config, self.triton, prompts)
        self.open, self._gate = 0, gate
        self.ended: Counter[str] = Counter()  # finished requests by outcome
        self.shadow: TrafficMirror | None = None  # not reset when mirroring ends
        self.forget()

    def forget(self) -> None:
        self._seen = BackendStats()
        self._first_token: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._per_token: deque[float] = deque(maxlen=MAX_SAMPLES)

    @property
    def observed(self) -> BackendStats:
        return replace(self._seen, open=self.open, first_token=(*self._first_token,), per_token=(*self._per_token,))

    async def answer(
        self, exchange: HttpExchange, body: dict[str, Any], rescue: ResumeFn, *, chat: bool
    ) -> CompletionJob:
        """Answer a request and record the outcome; client errors do not count as failures of the revision."""
        job = await self.completions.read(body, chat=chat)
        with self._gate.reserve(job.texts):
            self.open += 1
            began = time.monotonic()
            try:
                await self.completions.make(exchange, job, rescue)
            except BaseException as error:
                self.note(_failure(error, exchange))
                raise
            else:
                self.note("")
                job.seconds = time.monotonic() - began
                self._sample(exchange, job)
                return job
            finally:
                self.open -= 1

    def note(self, failure: str) -> None:
        self.ended["failed" if failure else "ok"] += 1
        self._seen.requests += 1
        self._seen.failed += bool(failure)
        self._seen.said = failure or self._seen.said

    def _sample(self, exchange: HttpExchange, job: CompletionJob) -> None:
        self._seen.drafted += job.drafted
        self._seen.accepted += job.accepted
        tokens = sum(text.completion_tokens for text in job.grown)
        if exchange.first_token_at is not None:
            self._first_token.append(exchange.first_token_at - exchange.began_at)
            if tokens > 1:
                self._per_token.append((time.monotonic() - exchange.first_token_at) / (tokens - 1))


def _failure(error: BaseException, exchange: HttpExchange) -> str:
    """Return the failure message to record for a revision; "" if the client disconnected or its request is invalid."""
    cause = exchange.ended if isinstance(error, asyncio.CancelledError) else error
    if isinstance(cause, ApiError):
        return cause.message if cause.status >= 500 else ""
    return "" if cause is None else "internal error"


class Router:
    """Distributes requests over revisions, and retires unused ones; create it inside the running event loop."""

    def __init__(
        self, config: GatewayConfig, prompts: PromptReader, gate: AdmissionControl, shared: SharedState
    ) -> None:
        self._gate, self._shared = gate, shared
        self._file = Path(config.routes_file) if config.routes_file else None
        self._stamp: tuple[int, int] | None = None
        self._generation, self._changed = 0, False
        self._listed = {0}
        self._shadow: tuple[RevisionBackend, TrafficMirror] | None = None
        self.all = {0: RevisionBackend(Route(0, 100, config), prompts, gate)}

    @property
    def main(self) -> RevisionBackend:
        """Return the revision with the largest share."""
        return max(self.all.values(), key=lambda version: version.route.share)

    @property
    def most_values(self) -> int:
        """Return the maximum number of JSON values allowed in a request, over all revisions."""
        return max(version.prompts.most_values for version in self.all.values())

    async def answer(self, exchange: HttpExchange, body: dict[str, Any], *, chat: bool) -> None:
        """Answer a request with the next revision, or with another one if that fails before the response starts.

        A request that a newer revision rejects as invalid is also retried on an older one. If the older one accepts it,
        the rejection counts as a failure of the newer revision.
        """
        version = self._next()
        try:
            job = await version.answer(exchange, body, partial(self._resume_on, version), chat=chat)
        except ApiError as error:
            other = next(iter(self._replacements(version)), None)
            refuses = (
                error.status in CLIENT_ERROR_STATUSES
                and other is not None
                and other.route.revision < version.route.revision
            )
            if exchange.status or other is None or (error.status < 500 and not refuses):
                raise
            log.warning(
                "revision %d failed, retrying on revision %d: %s", version.route.revision, other.route.revision, error
            )
            exchange.first_token_at = None
            try:
                await other.answer(exchange, body, partial(self._resume_on, other), chat=chat)
            except ApiError as same:
                if refuses and same.status in CLIENT_ERROR_STATUSES:
                    raise error from None
                raise
            if refuses:
                version.note(f"it rejects a request that revision {other.route.revision} accepts: {error.message}")
        else:
            if self._shadow and self._shadow[0] is not version:
                self._shadow[1].offer(body, job)

    async def refresh(self) -> None:
        """Reload the routing table if it changed, close retired idle revisions, and write the statistics."""
        if self._file is None:
            return
        with suppress(OSError):
            stat = self._file.stat()
            if (stamp := (stat.st_mtime_ns, stat.st_ino)) != self._stamp:
                self._stamp = stamp
                await self._load_routes()
        for revision in self.all.keys() - self._listed:
            if not self.all[revision].open:
                await self.all.pop(revision).triton.close()
                self._changed = True
        if len(self.all) > 1 or self._changed:
            self._changed = False
            seen = {each.route.revision: each.observed for each in self.all.values()}
            sight = RouterStats(self._generation, seen, self._shadow[1].mirror_stats if self._shadow else MirrorStats())
            with suppress(OSError):  # a full disk must not make requests fail
                path = router_stats_path(self._file, self._shared.index)
                await asyncio.to_thread(write_router_stats, path, sight)

    async def close(self) -> None:
        if self._shadow:
            self._shadow[1].end()
        for version in self.all.values():
            await version.triton.close()

    def _next(self) -> RevisionBackend:
        with self._shared.served(self._generation) as served:
            route = next_route([version.route for version in self.all.values()], served)
            served[route.revision] = served.get(route.revision, 0) + 1
        return self.all[route.revision]

    def _replacements(self, version: RevisionBackend) -> list[RevisionBackend]:
        """Return the revisions that can serve a request instead of `version`, largest share first.

        An older revision qualifies even with a share of 0, because all requests may already go to the newer one. A
        newer revision with a share of 0 does not qualify.
        """
        number = version.route.revision
        listed = (self.all[each] for each in self._listed - {number} if each in self.all)
        able = [each for each in listed if each.route.share or each.route.revision < number]
        return sorted(able, key=lambda each: -each.route.share)

    async def _resume_on(self, version: RevisionBackend, error: ApiError) -> TritonClient | None:
        """Return a client of a server that can resume an interrupted completion, or None after `resume_s` seconds.

        Candidates are the revisions with identical output and `version` itself, unless its server is shutting down. The
        interruption counts as a failure of `version`.
        """
        version.note("a response broke off")
        same_text = version.route.config.same_text
        deadline = time.monotonic() + version.route.config.limits.resume_s
        while time.monotonic() < deadline:
            able = [each for each in self._replacements(version) if each.route.config.same_text == same_text != ""]
            if error.code != SHUTTING_DOWN:
                able.append(version)
            if not able:
                return None
            for each in able:
                if await each.triton.is_ready():
                    return each.triton
            await asyncio.sleep(RESUME_EVERY_S)
        return None

    async def _load_routes(self) -> None:
        assert self._file is not None
        try:
            routes = await asyncio.to_thread(read_routes, self._file)
            versions = [await self._version(route) for route in routes.routes]
        except TrtspecError as error:
            log.error("keeping the current routes: %s", error)
            return
        self._adopt(routes, versions)
        self._update_mirror()

    async def _version(self, route: Route) -> RevisionBackend:
        """Return the backend with the route's configuration; the tokenizer of a new one is loaded in a thread."""
        for version in self.all.values():
            if version.route.config == route.config:
                return version
        return RevisionBackend(route, await asyncio.to_thread(PromptReader, route.config), self._gate)

    def _adopt(self, routes: Routes, versions: Sequence[RevisionBackend]) -> None:
        """Switch to a new routing table atomically; revisions without a route only finish their open requests."""
        for version in self.all.values():
            version.route = replace(version.route, share=0, shadow=0)
        left = [version for version in self.all.values() if version not in versions]
        for route, version in zip(routes.routes, versions, strict=True):
            version.route = route
            version.forget()
        self.all = {version.route.revision: version for version in (*left, *versions)}
        self._listed = {route.revision for route in routes.routes}
        self._generation, self._changed = routes.generation, True

    def _update_mirror(self) -> None:
        """Start, stop or adjust mirroring; the statistics are kept while the mirrored revision is the same."""
        wanted = next((each for each in self.all.values() if each.route.shadow), None)
        if self._shadow and self._shadow[0] is not wanted:
            self._shadow[1].end()
            self._shadow = None
        if wanted and not self._shadow:
            wanted.shadow = TrafficMirror(wanted.completions, self._gate.is_busy)
            self._shadow = wanted, wanted.shadow
        if wanted and self._shadow:
            self._shadow[1].share = wanted.route.shadow


def router_stats_path(routes: Path, process: int = 0) -> Path:
    """Return the path of a gateway process's statistics file that belongs to a routes file."""
    return routes.with_name(f"{routes.name}.seen" + (f".{process}" if process else ""))


def remove_router_stats(routes: Path) -> None:
    """Remove the statistics of an earlier gateway, which may have had more processes."""
    for path in router_stats_files(router_stats_path(routes)):
        path.unlink(missing_ok=True)
