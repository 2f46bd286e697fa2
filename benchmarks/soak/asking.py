# SPDX-License-Identifier: Apache-2.0
"""Send one request to either API of a server and return the outcome: complete or streamed, finished or cancelled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

CHUNK_BYTES = 64 << 10
DATA, DONE = b"data:", b"[DONE]"


@dataclass(frozen=True)
class Ask:
    """Request parameters with OpenAI's names; with `draft_len` None the server decides."""

    name: str
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    draft_len: int | None = None

    @property
    def penalties(self) -> dict[str, float]:
        asked = {"presence_penalty": self.presence, "frequency_penalty": self.frequency}
        found = {name: value for name, value in asked.items() if value}
        return found | ({"repetition_penalty": self.repetition} if self.repetition != 1.0 else {})


class Entry(Protocol):
    """A server's API with its request format."""

    name: str
    url: str

    def path(self, *, stream: bool) -> str: ...

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]: ...

    def text(self, document: Mapping[str, Any]) -> str: ...

    def tokens(self, document: Mapping[str, Any]) -> int:
        """Return the number of tokens so far, or 0 if this document does not report it."""


@dataclass(frozen=True)
class TritonEntry(Entry):
    """Triton's HTTP API: generate and generate_stream of `ensemble`."""

    url: str
    name: str = "triton"

    def path(self, *, stream: bool) -> str:
        return "/v2/models/ensemble/generate" + ("_stream" if stream else "")

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        sampled = {"temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed} if ask.temperature else {}
        stops = {"stop_words": list(ask.stop)} if ask.stop else {}
        drafts = {} if ask.draft_len is None else {"num_draft_tokens": ask.draft_len}
        asked = {"text_input": ask.prompt, "max_tokens": ask.max_tokens, "end_id": -1, "stream": stream}
        return asked | sampled | stops | drafts | ask.penalties

    def text(self, document: Mapping[str, Any]) -> str:
        return str(document["text_output"])

    def tokens(self, document: Mapping[str, Any]) -> int:
        return int(document.get("num_output_tokens", 0))


@dataclass(frozen=True)
class OpenaiEntry(Entry):
    """Completions of the OpenAI-compatible gateway."""

    url: str
    model: str
    name: str = "openai"

    def path(self, *, stream: bool) -> str:
        return "/v1/completions"

    def body(self, ask: Ask, *, stream: bool) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, "ignore_eos": True}
        sampled = {"temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed}
        stops = {"stop": list(ask.stop)} if ask.stop else {}
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return asked | sampled | stops | streamed | ask.penalties

    def text(self, document: Mapping[str, Any]) -> str:
        return "".join(choice["text"] for choice in document["choices"])

    def tokens(self, document: Mapping[str, Any]) -> int:
        return int((document.get("usage") or {}).get("completion_tokens", 0))


@dataclass(frozen=True)
class Heard:
    """The outcome: the text, its tokens, and the error; `left` if the client disconnected first."""

    text: str = ""
    tokens: int = 0
    problem: str = ""
    left: bool = False
    revisions: int = 0  # number of revisions named in the response

    def differs_from(self, expected: str) -> bool:
        """Return whether the text or the outcome differs."""
        return not expected.startswith(self.text) if self.left else self.text != expected


def hear(entry: Entry, ask: Ask, *, stream: bool, within_s: float, leave_s: float | None = None) -> Heard:
    """Return the outcome of a request within `within_s`; the client disconnects after `leave_s`, if given."""
    pieces: list[str] = []
    tokens, revisions = 0, set()
    try:
        limit_s = within_s if leave_s is None else leave_s
        for document in documents(entry, ask, stream=stream, end=time.monotonic() + limit_s):
            if "error" in document:
                return Heard("".join(pieces), tokens, f"said {document['error']}"[:300])
            pieces.append(entry.text(document))
            revisions |= {document["system_fingerprint"]} if document.get("system_fingerprint") else set()
            tokens = entry.tokens(document) or tokens
    except TimeoutError:
        problem = f"no response within {within_s:.0f} s" if leave_s is None else ""
        return Heard("".join(pieces), tokens, problem, left=leave_s is not None)
    except (OSError, HTTPException, ValueError, KeyError) as error:
        return Heard("".join(pieces), tokens, f"{type(error).__name__}: {error}"[:300])
    return Heard("".join(pieces), tokens, revisions=len(revisions))


def documents(entry: Entry, ask: Ask, *, stream: bool, end: float) -> Iterator[dict[str, Any]]:
    """Yield the documents of a response; raise TimeoutError at `end`, a time of the monotonic clock."""
    content = b""
    for chunk in _chunks(entry, ask, stream=stream, end=end):
        *lines, content = (content + chunk).split(b"\n") if stream else (content + chunk,)
        said = (line[len(DATA) :].strip() for line in lines if line.startswith(DATA))
        yield from (json.loads(each) for each in said if each != DONE)
    if not stream:
        yield json.loads(content)


def _chunks(entry: Entry, ask: Ask, *, stream: bool, end: float) -> Iterator[bytes]:
    address = urlsplit(entry.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=max(0.01, end - time.monotonic()))
    try:
        body = json.dumps(entry.body(ask, stream=stream))
        connection.request("POST", entry.path(stream=stream), body, {"Content-Type": "application/json"})
        open_socket = connection.sock  # http.client drops it if the server will close the connection
        answer = connection.getresponse()
        if answer.status != 200:
            raise HTTPException(f"{answer.status} {answer.read1(300).decode(errors='replace')}")
        while True:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            open_socket.settimeout(left)
            if not (chunk := answer.read1(CHUNK_BYTES)):
                return
            yield chunk
    finally:
        connection.close()
