# SPDX-License-Identifier: Apache-2.0
"""What the entry is told: one JSON file, written by whoever starts it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.ports import LOOPBACK


@dataclass(frozen=True)
class Limits:
    """What the entry takes before it refuses; a recipe sets what its `serving.limits` has, with the same defaults.

    Attributes:
        max_texts: texts that are made at once; a request for more gets 503.
        max_choices: texts of one request, prompts times `n`.
        requests_per_minute: of one key, or of all clients where there are no keys; 0 is no limit.
        timeout_s: for all of a request.
        stall_s: between two tokens.
        write_timeout_s: how long a client that reads nothing may keep a text waiting.
        body_timeout_s: for the body to arrive.
        drain_s: how long open requests go on after SIGTERM.
        resume_s: how long a text that broke off waits for somebody who goes on with it.
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
class EntryConfig:
    """One entry: where it listens, whom it asks, and what it knows of the model.

    Attributes:
        grpc: Triton's address, as 127.0.0.1:8001.
        model: the name that clients ask for.
        triton_model: the model asked for every text.
        text_level: it takes text, not token ids.
        tokenizer: the directory of the artifact's tokenizer.
        draft_len: tokens drafted one after the other, at most; 0 where the recipe does not say it.
        vocab_size: the model's logits, padding included; 0 where a bias may have as many as the tokenizer's tokens.
        stop_ids: end ids beyond the first, of an engine that ends a text at one id only.
        keys_file: API keys, one a line; empty for none.
        fingerprint: what answers call this revision of the model.
        same_text: equal for revisions whose greedy texts are the same; empty where that is not known.
        routes_file: the revisions that share the requests (`routing_state`); empty for one revision.
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
    limits: Limits = field(default_factory=Limits)

    def render(self) -> bytes:
        """Return the file's content."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def load_config(path: Path) -> EntryConfig:
    """Read a file; raises TrtspecError for one that is none."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise TrtspecError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise TrtspecError(f"not JSON: {error}", where=str(path)) from None
    return config_of(document, str(path))


def config_of(document: dict[str, Any], where: str) -> EntryConfig:
    """Return the configuration that a document is; raises TrtspecError for one that is none."""
    try:
        limits = _made(Limits, document.get("limits", {}))
        made: EntryConfig = _made(
            EntryConfig, {**document, "limits": limits, "stop_ids": tuple(document.get("stop_ids", ()))}
        )
        return made
    except (TypeError, AttributeError) as error:
        raise TrtspecError(f"not the configuration of an entry: {error}", where=where) from None


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass of values that have their default's type where there is one."""
    for each in fields(kind):
        if each.name in values and not _fits(values[each.name], each.default):
            raise TypeError(f"{each.name} is {values[each.name]!r}, expected as {each.default!r}")
    return kind(**values)


def _fits(given: Any, default: Any) -> bool:
    if not isinstance(default, (int, float, str)):
        return True
    return type(given) is type(default) or (isinstance(default, float) and type(given) is int)
