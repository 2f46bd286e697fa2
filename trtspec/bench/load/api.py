# SPDX-License-Identifier: Apache-2.0
"""The description of an API that texts are asked for by, what an answer came to, and what is wanted of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.registry import find
from trtspec.engine.prompts.prompt import Prompt

PACKAGE, ATTRIBUTE = "trtspec.bench.load.endpoints", "API"
MOST = 10**12  # of anything that a server counts
Event = Mapping[str, Any]


class BadAnswer(DeployError):
    """A server's answer is an error, or not what its API promises."""


@dataclass(frozen=True)
class Wanted:
    """How texts are asked for: greedy unless there is a temperature.

    With `exact_len` each has `max_tokens` tokens, whatever ends it otherwise.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    exact_len: bool = False


@dataclass
class Reply:
    """What has come of one answer so far; counts are None where the server does not tell them.

    `histogram` has at j the steps that accepted exactly j draft tokens.
    """

    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    histogram: tuple[int, ...] = ()
    finish_reason: str = ""


@dataclass(frozen=True)
class Api:
    """One API; a module of `endpoints/` joins by defining it as `API`, an installed one by an entry point.

    `body` makes a request of a model's name, a prompt and what is wanted. `read` takes an event of the stream and tells
    whether it brought a part of the text; it raises BadAnswer for an error. Where it `ends` with an event, a stream
    without that broke off. `without_drafts` asks our own servers for the target alone.
    """

    path: str
    body: Callable[[str, Prompt, Wanted], dict[str, Any]]
    read: Callable[[Event, Reply], bool]
    ends: bool
    without_drafts: Mapping[str, Any] = field(default_factory=lambda: {"num_draft_tokens": 0})


def find_api(name: str) -> Api:
    """Return an API by its name; raises TrtspecError that lists the known ones."""
    api: Api = find(PACKAGE, ATTRIBUTE, name, "API")
    return api


def counted(value: Any) -> int | None:
    """Return a server's count, None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def text_in(value: Any) -> str:
    """Return a server's text, "" for null; raises TypeError for anything else."""
    if value is not None and not isinstance(value, str):
        raise TypeError("no text")
    return value or ""
