# SPDX-License-Identifier: Apache-2.0
"""Detect the API, the model and the draft control of the server at an address."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import aiohttp

from trtspec.bench.load.api import BadAnswer, LoadSampling, find_api
from trtspec.bench.load.client import Endpoint, LoadClient, clock
from trtspec.bench.load.sse import document
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.engine.prompts.prompt import Prompt

AUTO, TRITON, COMPLETIONS = "auto", "triton", "completions"
PROBE = Prompt("Hello", "probe", "")
KEY_VARIABLE = "TRTSPEC_OPENAI_KEY"


async def find_endpoint(client: LoadClient, url: str, api: str, model: str, key_variable: str) -> Endpoint:
    """Return the endpoint at an address; raise DeployError if no supported API responds.

    With `api` "auto", a server that lists OpenAI models is used through completions, any other through Triton. The key
    is read from an environment variable and sent only to this address.
    """
    asked = None if api == AUTO else find_api(api)
    url, headers = _address(url), _key(key_variable)
    models = await _models(client, url, headers) if api != TRITON else []
    name = api if asked else COMPLETIONS if models else TRITON
    found = asked or find_api(name)
    if name != TRITON and not (models or model):
        raise DeployError("the server does not list its models", where=url, hint="give one with --model")
    return Endpoint(url, name, found, model or (models[0] if models else ""), headers=headers)


async def ensure_answers(client: LoadClient, endpoint: Endpoint) -> None:
    """Raise DeployError if a probe request fails."""
    if error := await _probe_error(client, endpoint):
        raise DeployError(error, where=endpoint.url, hint="check its state with: trtspec status NAME")


async def target_alone(client: LoadClient, endpoint: Endpoint) -> Endpoint | None:
    """Return the same server with drafting switched off, or None if it does not support that.

    A server that accepts an invalid value for the field ignores it, and would still draft.
    """
    alone = replace(endpoint, extra=endpoint.api.without_drafts)
    nonsense = replace(endpoint, extra=dict.fromkeys(endpoint.api.without_drafts, "none"))
    if await _probe_error(client, alone) or not await _probe_error(client, nonsense):
        return None
    return alone


async def _probe_error(client: LoadClient, endpoint: Endpoint) -> str:
    now = clock()
    body = endpoint.request(PROBE, LoadSampling(2))
    return (await client.ask(endpoint, PROBE, body, now, now)).error


async def _models(client: LoadClient, url: str, headers: Mapping[str, str]) -> list[str]:
    """Return the models listed by an OpenAI-compatible server."""
    try:
        status, content = await client.get(f"{url}/v1/models", headers)
        if status in (401, 403):
            hint = "give the environment variable that holds the key with --key-env"
            raise DeployError(f"the server returned {status}: it requires a key", where=url, hint=hint)
        data = document(content).get("data") if status == 200 else None
    except BadAnswer:
        return []
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError, ValueError) as error:
        reason = getattr(error, "os_error", None) or error
        raise DeployError(f"the server cannot be reached: {reason or type(error).__name__}", where=url) from None
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _address(url: str) -> str:
    """Return an address without path; raise DeployError if it is invalid."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        known = False
    if not known or parts.username or parts.query or parts.fragment:
        raise DeployError(f"{url!r} is not a server's address", hint="use a form like http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(variable: str) -> dict[str, str]:
    """Return the authorization header; raise TrtspecError if a non-default variable is unset."""
    key = os.environ.get(variable, "")
    if not key and variable != KEY_VARIABLE:
        raise TrtspecError(f"the environment variable {variable} is not set", hint="set it to the server's key")
    if not key.isascii() or not key.isprintable():
        raise TrtspecError(f"{variable} contains characters that are invalid in an HTTP header")
    return {"Authorization": f"Bearer {key}"} if key else {}
