# SPDX-License-Identifier: Apache-2.0
"""Detect the API, the model and the draft control of the server at an address, and read its draft counters.

Prometheus counters are for servers that do not report draft statistics per response. They include all traffic of a
server, so they are correct only without other clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp

from trtspec.bench.load.api import BadAnswer, LoadSampling, find_api
from trtspec.bench.load.client import Endpoint, LoadClient, clock, document
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.prometheus_text import parse_metrics
from trtspec.engine.prompts.prompt import Prompt

# Draft steps, drafted tokens and accepted tokens; the names are prefixed by the engine's name and a colon. Source:
# vllm-project/vllm:vllm/v1/spec_decode/metrics.py@def9ce85.
COUNTER_NAMES = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
AUTO, TRITON, COMPLETIONS = "auto", "triton", "completions"
PROBE = Prompt("Hello", "probe", "")
KEY_VARIABLE = "TRTSPEC_OPENAI_KEY"
SERVED, BASELINE = "served", "baseline"  # the server with speculation, and the target alone


class Counters(NamedTuple):
    """Values of the counters, or their increase; 0 for a server that does not export them."""

    steps: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    def since(self, before: Counters | None) -> Counters:
        """Return the increase since `before`; zeros if the server was restarted or did not export them before."""
        if before is None or self.steps < before.steps:
            return Counters()
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


async def read_counters(client: LoadClient, endpoint: Endpoint) -> Counters | None:
    """Fetch a server's counters; None if it does not export any."""
    try:
        status, content = await client.get(f"{endpoint.url}/metrics", endpoint.headers)
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):  # distinct classes before Python 3.11
        return None
    return parse_counters(content) if status == 200 else None


def parse_counters(text: bytes) -> Counters | None:
    """Return the counters of a Prometheus text, summed over labels."""
    found = {name.rpartition(":")[2]: samples for name, samples in parse_metrics(text).items()}
    if not all(name in found for name in COUNTER_NAMES):
        return None
    return Counters(*(sum(sample.value for sample in found[name]) for name in COUNTER_NAMES))


@dataclass(frozen=True)
class ServerAddress:
    """A server's address and API; if `model` is empty, the first model that it lists is used."""

    url: str
    api: str = AUTO
    model: str = ""
    key_variable: str = KEY_VARIABLE


async def find_arms(client: LoadClient, served: ServerAddress, baseline: ServerAddress | None) -> dict[str, Endpoint]:
    """Return the endpoints of the server and of the target alone, from `baseline` or the server itself."""
    arms = {SERVED: await find_endpoint(client, served)}
    alone = await find_endpoint(client, baseline) if baseline else await target_alone(client, arms[SERVED])
    return arms | ({BASELINE: alone} if alone else {})


async def find_endpoint(client: LoadClient, server: ServerAddress) -> Endpoint:
    """Return the endpoint at an address; raise DeployError if no supported API responds or a probe request fails.

    With the API "auto", a server that lists OpenAI models is used through completions, any other through Triton. The
    key is read from an environment variable and sent only to this address.
    """
    asked = None if server.api == AUTO else find_api(server.api)
    url, headers = _address(server.url), _key(server.key_variable)
    models = await _models(client, url, headers) if server.api != TRITON else []
    name = server.api if asked else COMPLETIONS if models else TRITON
    model = server.model or (models[0] if models else "")
    if name != TRITON and not model:
        raise DeployError("the server does not list its models", where=url, hint="give one with --model")
    endpoint = Endpoint(url, name, asked or find_api(name), model, headers=headers)
    if error := await _probe_error(client, endpoint):
        raise DeployError(error, where=endpoint.url, hint="check its state with: trtspec status NAME")
    return endpoint


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
