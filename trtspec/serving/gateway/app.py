# SPDX-License-Identifier: Apache-2.0
"""The gateway's ASGI application: routes, request handlers and request counters."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trtspec.core.http_hosts import BAD_REQUEST, FORBIDDEN, MISDIRECTED, HostRules
from trtspec.core.installation import __version__
from trtspec.serving.gateway.admission import AdmissionControl
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError, internal_error, overloaded
from trtspec.serving.gateway.http import TICK_S, HttpExchange, RequestBodies
from trtspec.serving.gateway.metrics import CONTENT_TYPE, GatewayMetrics, render_metrics
from trtspec.serving.gateway.parameters import describe, model_not_found
from trtspec.serving.gateway.prompts import PromptReader
from trtspec.serving.gateway.router import Router
from trtspec.serving.gateway.shared_state import Samples, SharedState

REJECTED = (401, 429, 503)
HOST_CODES = {BAD_REQUEST: "invalid_host", FORBIDDEN: "foreign_origin", MISDIRECTED: "foreign_host"}


class GatewayState:
    """State shared by all requests, stored in `app.state.gateway`; create it inside the running event loop."""

    def __init__(self, config: GatewayConfig, keys: list[str], prompts: PromptReader, shared: SharedState) -> None:
        self.config, self.shared = config, shared
        self.gate = AdmissionControl(config.limits, keys, shared=shared)
        self.metrics = GatewayMetrics()
        self.versions = Router(config, prompts, self.gate, shared)
        self.open: set[HttpExchange] = set()
        self.bodies = RequestBodies(config.limits.max_body_bytes)
        self.created = int(time.time())

    async def watch(self) -> None:
        """Check the time limits of open requests and reload changed routes every TICK_S seconds, forever."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for exchange in [*self.open]:
                exchange.check(now)
            await self.versions.refresh()
            self.publish()

    def samples(self) -> Samples:
        """Return this process's metrics."""
        return self.metrics.samples(self.versions.all.values())

    def publish(self) -> None:
        """Make this process's metrics visible to the gateway's other processes, if there are any."""
        if self.shared.processes > 1:
            self.shared.publish(self.samples())

    async def serve(self, exchange: HttpExchange, endpoint: str, *, chat: bool) -> None:
        """Answer one completion request and record its status and latency in the metrics."""
        self.open.add(exchange)
        self.metrics.in_flight += 1
        self.publish()
        try:
            await exchange.run(self._answer(exchange, chat=chat))
        finally:
            self.open.discard(exchange)
            self.metrics.in_flight -= 1
            self.count(endpoint, exchange.status, exchange.error)
            self.metrics.duration.observe(endpoint, time.monotonic() - exchange.began_at)
            if exchange.first_token_at is not None:
                self.metrics.first_token.observe(endpoint, exchange.first_token_at - exchange.began_at)
            if exchange.broken:
                self.metrics.broken[exchange.broken] += 1
            self.publish()

    async def _answer(self, exchange: HttpExchange, *, chat: bool) -> None:
        """Authenticate, parse and answer one request; raises ApiError if it is rejected."""
        self.gate.check(exchange.headers.get("authorization", ""))
        body = await exchange.document(self.versions.most_values)
        await self.versions.answer(exchange, body, chat=chat)

    def count(self, endpoint: str, status: int, error: ApiError | None = None) -> None:
        """Count a finished request; responses with status 401, 429 or 503 are also counted as rejections.

        An error within a stream is none, because its status is 200.
        """
        self.metrics.requests[endpoint, status] += 1
        if error is not None and status in REJECTED:
            self.metrics.rejected[error.code or "unknown"] += 1

    def error_response(self, endpoint: str, error: ApiError) -> Response:
        """Count an error and return its HTTP response in OpenAI's format."""
        self.count(endpoint, error.status, error)
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


@dataclass(frozen=True)
class CompletionEndpoint:
    """The ASGI application of one completion endpoint; `chat` selects chat messages instead of a prompt."""

    path: str
    chat: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state: GatewayState = scope["app"].state.gateway
        exchange = HttpExchange(scope, receive, send, state.config.limits, state.bodies)
        await state.serve(exchange, self.path, chat=self.chat)


class HeadCheck:
    """ASGI middleware that rejects HTTP requests whose Host or Origin header is not allowed."""

    def __init__(self, app: ASGIApp, rules: HostRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(scope["headers"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await scope["app"].state.gateway.error_response("other", error)(scope, receive, send)

    def _error(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        hosts, origins = (
            [value.decode("latin-1") for name, value in headers if name == wanted] for wanted in (b"host", b"origin")
        )
        refusal = self._rules.refusal(hosts, origins)
        return ApiError(refusal.status, refusal.message, code=HOST_CODES[refusal.status]) if refusal else None


def make_app(config: GatewayConfig, keys: list[str], rules: HostRules, shared: SharedState | None = None) -> Starlette:
    """Return the ASGI application of one gateway process; raises TrtspecError if the tokenizer is unreadable."""
    prompts, shared = PromptReader(config), shared or SharedState(holders=max(1, len(keys)))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state = app.state.gateway = GatewayState(config, keys, prompts, shared)
        await state.versions.refresh()
        watching = asyncio.ensure_future(state.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await state.versions.close()

    completions = [
        CompletionEndpoint("/v1/completions", chat=False),
        CompletionEndpoint("/v1/chat/completions", chat=True),
    ]
    routes = [Route(endpoint.path, endpoint, methods=["POST"]) for endpoint in completions]
    routes += [Route(path, _counted(path, get)) for path, get in GETS.items()]
    handlers: Any = {HTTPException: _no_route}
    return Starlette(
        routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=[Middleware(HeadCheck, rules=rules)]
    )


async def _models(state: GatewayState, request: Request) -> Response:
    state.gate.check(request.headers.get("authorization", ""))
    return JSONResponse({"object": "list", "data": [state.described()]})


async def _model(state: GatewayState, request: Request) -> Response:
    state.gate.check(request.headers.get("authorization", ""))
    if request.path_params["model"] != state.config.model:
        raise model_not_found(request.path_params["model"])
    return JSONResponse(state.described())


async def _health(state: GatewayState, request: Request) -> Response:
    if not await state.versions.main.triton.is_ready():
        raise overloaded("the model is not ready")
    return JSONResponse({"status": "ok"})


async def _version(state: GatewayState, request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def _metrics(state: GatewayState, request: Request) -> Response:
    parts = [state.samples(), *(state.shared.others() if state.shared.processes > 1 else [])]
    text = render_metrics(state.gate.texts, state.versions.all.values(), parts)
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def _openapi(state: GatewayState, request: Request) -> Response:
    return JSONResponse(describe(state.versions.main.route.config, __version__))


Get = Callable[[GatewayState, Request], Awaitable[Response]]
GETS: dict[str, Get] = {
    "/v1/models": _models,
    "/v1/models/{model:path}": _model,
    "/health": _health,
    "/version": _version,
    "/metrics": _metrics,
    "/openapi.json": _openapi,
}


def _counted(path: str, get: Get) -> Callable[[Request], Awaitable[Response]]:
    """Wrap a GET handler as an endpoint that counts responses and renders errors in OpenAI's format."""

    async def endpoint(request: Request) -> Response:
        state: GatewayState = request.app.state.gateway
        try:
            response = await get(state, request)
        except ApiError as error:
            return state.error_response(path, error)
        except Exception:
            return state.error_response(path, internal_error("the request failed", traceback.format_exc()))
        state.count(path, response.status_code)
        return response

    return endpoint


async def _no_route(request: Request, error: HTTPException) -> Response:
    message = {404: "no such path", 405: "method not allowed for this path"}.get(error.status_code, error.detail)
    response: Response = request.app.state.gateway.error_response("other", ApiError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response
