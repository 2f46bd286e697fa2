# SPDX-License-Identifier: Apache-2.0
"""The gateway's configuration: one JSON file written by the process that starts the gateway."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
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

    def render(self) -> bytes:
        """Return the content of the configuration file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


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
