# SPDX-License-Identifier: Apache-2.0
"""The gateway as an ASGI application: routes, handlers and request counts."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from trtspec.core.http_hosts import BAD_REQUEST, FORBIDDEN, MISDIRECTED, HostRules, host_rules
from trtspec.core.installation import __version__
from trtspec.serving.gateway.admission import AdmissionControl
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.connections import MAX_LINES
from trtspec.serving.gateway.errors import ApiError, internal_error, overloaded
from trtspec.serving.gateway.http import TICK_S, HttpExchange, RequestBodies
from trtspec.serving.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from trtspec.serving.gateway.parameters import describe, unknown_model
from trtspec.serving.gateway.prompts import PromptReader
from trtspec.serving.gateway.router import Router

REJECTED = (401, 429, 503)
HOST_CODES = {BAD_REQUEST: "invalid_host", FORBIDDEN: "foreign_origin", MISDIRECTED: "foreign_host"}
Endpoint = Callable[[Request], Awaitable[Response]]


class GatewayState:
    """State shared by all requests; create it in the running event loop."""

    def __init__(self, config: GatewayConfig, keys: list[str], prompts: PromptReader) -> None:
        self.config = config
        self.gate = AdmissionControl(config.limits, keys)
        self.metrics = GatewayMetrics()
        self.versions = Router(config, prompts, self.gate)
        self.open: set[HttpExchange] = set()
        self.bodies = RequestBodies(config.limits.max_body_bytes)
        self.created = int(time.time())

    async def watch(self) -> None:
        """Check open requests and routes every TICK_S, forever."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for exchange in [*self.open]:
                exchange.look(now)
            await self.versions.look()

    async def serve(self, exchange: HttpExchange, endpoint: str, *, chat: bool) -> None:
        """Answer one completion request and count it."""
        self.open.add(exchange)
        self.metrics.in_flight += 1
        try:
            await exchange.run(partial(self._answer, chat=chat))
        finally:
            self.open.discard(exchange)
            self.metrics.in_flight -= 1
            self._count(exchange, endpoint)

    async def _answer(self, exchange: HttpExchange, *, chat: bool) -> None:
        """Answer one request; raises ApiError if it is rejected."""
        self.gate.check(exchange.headers.get("authorization", ""))
        body = await exchange.document(self.versions.most_values)
        await self.versions.answer(exchange, body, chat=chat)

    def count(self, endpoint: str, error: ApiError) -> Response:
        """Count an error and return its response."""
        self.metrics.requests[endpoint, error.status] += 1
        if error.status in REJECTED:
            self.metrics.rejected[error.code or "unknown"] += 1
        return Response(error.body, error.status, {"content-type": "application/json", **error.headers})

    def described(self) -> dict[str, Any]:
        """Return the model as an entry of OpenAI's model list."""
        config = self.versions.main.route.config
        return {
            "id": config.model,
            "object": "model",
            "created": self.created,
            "owned_by": "trtspec",
            "max_model_len": config.max_seq_len,
        }

    def _count(self, exchange: HttpExchange, endpoint: str) -> None:
        now = time.monotonic()
        self.metrics.requests[endpoint, exchange.status] += 1
        self.metrics.duration.observe(endpoint, now - exchange.began_at)
        if exchange.first_token_at is not None:
            self.metrics.first_token.observe(endpoint, exchange.first_token_at - exchange.began_at)
        if exchange.broken:
            self.metrics.broken[exchange.broken] += 1
        if exchange.error is not None and exchange.error.status in REJECTED:
            self.metrics.rejected[exchange.error.code or "unknown"] += 1


class CompletionEndpoint:
    """ASGI application of one completion endpoint."""

    def __init__(self, entry: Callable[[], GatewayState], path: str, *, chat: bool) -> None:
        self._entry, self._path, self._chat = entry, path, chat

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        entry = self._entry()
        await entry.serve(
            HttpExchange(scope, receive, send, entry.config.limits, entry.bodies), self._path, chat=self._chat
        )


class HeadCheck:
    """Middleware that rejects requests with too many headers or a disallowed Host or Origin."""

    def __init__(self, app: ASGIApp, rules: HostRules, entry: Callable[[], GatewayState]) -> None:
        self._app, self._rules, self._entry = app, rules, entry

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        error = self._error(scope["headers"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await self._entry().count("other", error)(scope, receive, send)

    def _error(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        if len(headers) > MAX_LINES:  # one of uvicorn's parsers does not limit them
            return ApiError(431, f"the request has more than {MAX_LINES} headers", code="too_many_headers")
        hosts, origins = (
            [value.decode("latin-1") for name, value in headers if name == wanted] for wanted in (b"host", b"origin")
        )
        refusal = self._rules.refusal(hosts, origins)
        return ApiError(refusal.status, refusal.message, code=HOST_CODES[refusal.status]) if refusal else None


def make_app(config: GatewayConfig, keys: list[str], rules: HostRules | None = None) -> Starlette:
    """Return the application; raises TrtspecError if the tokenizer is unreadable.

    `rules` defaults to the hosts of a server at the configured address.
    """
    prompts = PromptReader(config)
    entries: list[GatewayState] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        entries.append(GatewayState(config, keys, prompts))
        await entries[0].versions.look()
        watching = asyncio.ensure_future(entries[0].watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await entries[0].versions.close()

    def entry() -> GatewayState:
        return entries[0]

    texts = [("/v1/completions", False), ("/v1/chat/completions", True)]
    routes = [Route(path, CompletionEndpoint(entry, path, chat=chat), methods=["POST"]) for path, chat in texts]
    routes += [Route(path, _counted(entry, path, get)) for path, get in GETS.items()]
    handlers: Any = {HTTPException: partial(_no_route, entry)}
    checked = Middleware(HeadCheck, rules=rules or host_rules(config.host), entry=entry)
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=[checked])


async def _models(entry: GatewayState, request: Request) -> Response:
    entry.gate.check(request.headers.get("authorization", ""))
    return _json({"object": "list", "data": [entry.described()]})


async def _model(entry: GatewayState, request: Request) -> Response:
    entry.gate.check(request.headers.get("authorization", ""))
    if request.path_params["model"] != entry.config.model:
        raise unknown_model(request.path_params["model"])
    return _json(entry.described())


async def _health(entry: GatewayState, request: Request) -> Response:
    if not await entry.versions.main.triton.is_ready():
        raise overloaded("the model is not ready")
    return _json({"status": "ok"})


async def _version(entry: GatewayState, request: Request) -> Response:
    return _json({"version": __version__})


async def _metrics(entry: GatewayState, request: Request) -> Response:
    text = entry.metrics.render(entry.gate.texts, entry.versions.counts())
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def _openapi(entry: GatewayState, request: Request) -> Response:
    return _json(describe(entry.versions.main.route.config, __version__))


GETS: dict[str, Callable[[GatewayState, Request], Awaitable[Response]]] = {
    "/v1/models": _models,
    "/v1/models/{model:path}": _model,
    "/health": _health,
    "/version": _version,
    "/metrics": _metrics,
    "/openapi.json": _openapi,
}


def _counted(
    entry: Callable[[], GatewayState], path: str, get: Callable[[GatewayState, Request], Awaitable[Response]]
) -> Endpoint:
    """Return an endpoint that returns errors in OpenAI's format and counts its responses."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await get(entry(), request)
        except ApiError as error:
            return entry().count(path, error)
        except Exception:
            return entry().count(path, internal_error("the request failed", traceback.format_exc()))
        entry().metrics.requests[path, response.status_code] += 1
        return response

    return endpoint


async def _no_route(entry: Callable[[], GatewayState], request: Request, error: HTTPException) -> Response:
    messages = {404: "no such path", 405: "method not allowed for this path"}
    response = entry().count("other", ApiError(error.status_code, messages.get(error.status_code, error.detail)))
    response.headers.update(error.headers or {})
    return response


def _json(document: Any) -> Response:
    return Response(json.dumps(document), headers={"content-type": "application/json"})
