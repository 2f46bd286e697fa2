# SPDX-License-Identifier: Apache-2.0
"""What answers at an address: its API, the model that it serves, and whether it can be asked for the target alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import aiohttp

from trtspec.bench.load.api import BadAnswer, Wanted, find_api
from trtspec.bench.load.client import Endpoint, LoadClient, clock
from trtspec.bench.load.sse import document
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.engine.prompts.prompt import Prompt

AUTO, TRITON, COMPLETIONS = "auto", "triton", "completions"
PROBE = Prompt("Hello", "probe", "")
KEY_VARIABLE = "TRTSPEC_OPENAI_KEY"


async def find_endpoint(client: LoadClient, url: str, api: str, model: str, key_variable: str) -> Endpoint:
    """Return the endpoint at an address; raises DeployError where nothing answers that is known.

    `api` "auto" takes what says its models as OpenAI's servers do for completions, anything else for Triton. The key is
    read from an environment variable, and sent to no other address.
    """
    asked = None if api == AUTO else find_api(api)
    url, headers = _address(url), _key(key_variable)
    models = await _models(client, url, headers) if api != TRITON else []
    name = api if asked else COMPLETIONS if models else TRITON
    found = asked or find_api(name)
    if name != TRITON and not (models or model):
        raise DeployError("the server does not say which models it has", where=url, hint="name one with --model")
    return Endpoint(url, name, found, model or (models[0] if models else ""), headers=headers)


async def ensure_answers(client: LoadClient, endpoint: Endpoint) -> None:
    """Raise DeployError where a first request is not answered."""
    if error := await _error_of(client, endpoint):
        raise DeployError(error, where=endpoint.url, hint="look at its state with: trtspec status NAME")


async def target_alone(client: LoadClient, endpoint: Endpoint) -> Endpoint | None:
    """Return the same server asked to draft nothing; None where it cannot be asked for that.

    A server that takes nonsense in the place of the number does not read it, and would draft all the same.
    """
    alone = replace(endpoint, extra=endpoint.api.without_drafts)
    nonsense = replace(endpoint, extra=dict.fromkeys(endpoint.api.without_drafts, "none"))
    if await _error_of(client, alone) or not await _error_of(client, nonsense):
        return None
    return alone


async def _error_of(client: LoadClient, endpoint: Endpoint) -> str:
    now = clock()
    body = endpoint.request(PROBE, Wanted(2))
    return (await client.ask(endpoint, PROBE, body, now, now)).error


async def _models(client: LoadClient, url: str, headers: Mapping[str, str]) -> list[str]:
    """Return the models that a server of OpenAI's API says it has."""
    try:
        status, content = await client.get(f"{url}/v1/models", headers)
        if status in (401, 403):
            hint = "name the variable of the environment that has the key with --key-env"
            raise DeployError(f"the server answered {status}: it asks for a key", where=url, hint=hint)
        data = document(content).get("data") if status == 200 else None
    except BadAnswer:
        return []
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError, ValueError) as error:
        reason = getattr(error, "os_error", None) or error
        raise DeployError(f"the server cannot be reached: {reason or type(error).__name__}", where=url) from None
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _address(url: str) -> str:
    """Return an address without a path; raises DeployError for what is none."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        known = False
    if not known or parts.username or parts.query or parts.fragment:
        raise DeployError(f"{url!r} is not a server's address", hint="as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(variable: str) -> dict[str, str]:
    """Return the header with the key; one that was asked for by another name has to be there."""
    key = os.environ.get(variable, "")
    if not key and variable != KEY_VARIABLE:
        raise TrtspecError(f"the environment has no {variable}", hint="it holds the server's key")
    if not key.isascii() or not key.isprintable():
        raise TrtspecError(f"{variable} is no key: it has characters that no header takes")
    return {"Authorization": f"Bearer {key}"} if key else {}
