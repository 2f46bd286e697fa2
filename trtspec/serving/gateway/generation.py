# SPDX-License-Identifier: Apache-2.0
"""The state of a completion while Triton streams it, and the response in OpenAI's format."""

from __future__ import annotations

import json
import secrets
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise, zip_longest
from typing import Any

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.text import TextPieces, TextStream, begun_length
from trtspec.serving.gateway.parameters import RequestParameters
from trtspec.serving.gateway.prompts import Prompt
from trtspec.serving.gateway.tool_calls import ToolCall, ToolCallParser
from trtspec.serving.gateway.triton import LOG_PROBS, TOP_IDS, TOP_LOG_PROBS, decode_text, floats, ints


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability.

    Attributes:
        token: the token's text, with U+FFFD for a part of a character.
        raw: the token's bytes; those of the tokens that form a character can be joined.
        top: the most likely tokens at the same position.
        offset: number of characters of the completion before the token, or before the character of which it is a part.
    """

    token: str
    logprob: float
    raw: bytes = b""
    top: tuple[TokenLogprob, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """The next part of a streamed completion; `finish_reason` is None until the last part."""

    text: str
    finish_reason: str | None = None
    logprobs: Sequence[TokenLogprob] | None = None
    tool_calls: Sequence[tuple[int, ToolCall]] = ()  # each with its number in the completion

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.finish_reason or self.logprobs or self.tool_calls)


class StopCutter:
    """Truncates streamed text before the first stop string, and buffers text that may be the start of one.

    The first stop string is the one that is complete first, or the longest of those, so that the result does not depend
    on the division of the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def add(self, text: str, *, last: bool, stops: bool = True) -> str:
        """Append text and return the part that can be sent now; `last` flushes the buffer.

        Without `stops`, a stop string must have its end in later text.
        """
        if not self._stops:
            return text
        earlier = len(self._held)
        text = self._held + text
        self._held = ""
        if stops and (begin := self._find(text, earlier)) is not None:
            self.stopped = True
            return text[:begin]
        kept = len(text) if last else len(text) - max(begun_length(text, stop) for stop in self._stops)
        self._held = text[kept:]
        return text[:kept]

    def _find(self, text: str, earlier: int) -> int | None:
        """Return the place of the first stop string that ends after the first `earlier` characters."""
        found = ((text.find(stop, max(0, earlier + 1 - len(stop))), stop) for stop in self._stops)
        ends = [(begin + len(stop), begin) for begin, stop in found if begin >= 0]
        return min(ends)[1] if ends else None


class GenerationState:
    """The state of one completion; call `take` for each model response until a delta has a finish reason.

    Attributes:
        completion_tokens: number of tokens generated so far.
        prompt_tokens: length of the prompt in tokens; 0 until known.
        drafted, accepted: numbers of draft tokens reported by the model.
        draft_steps: number of steps with a draft, or None if the model does not report it.
        accepted_by_position: entry i is the number of steps that accepted at least i + 1 draft tokens; empty if the
            model does not report positions.
    """

    def __init__(self, asked: RequestParameters, prompt: Prompt, calls: ToolCallParser | None = None) -> None:
        self.prompt_tokens = len(prompt) if isinstance(prompt, tuple) else 0
        self.completion_tokens = 0
        self.drafted = self.accepted = 0
        self.draft_steps: int | None = None
        self.accepted_by_position: list[int] = []
        self._max_tokens, self._min_tokens = asked.max_tokens or 0, int(asked["min_tokens"])
        self._cutter = StopCutter(asked.stop)
        self._before = (0, 0, 0, [0] * 0)  # draft counts of the requests before the current one
        self._digest = sha256()
        self._calls, self._called = calls, 0

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 digest of the text so far, for comparing completions without storing them."""
        return self._digest.digest()

    def resume(self) -> None:
        """Prepare for a second model request that generates the rest and counts drafts from 0 again."""
        self._before = (self.drafted, self.accepted, self.draft_steps or 0, self.accepted_by_position)

    def take(self, outputs: Mapping[str, bytes], *, last: bool) -> Delta:
        """Process the raw output tensors of one model response, by name, and return the new delta.

        `last` is True for the final response of the request.
        """
        raise NotImplementedError

    def _delta(
        self, text: str, *, ended: bool, last: bool, logprobs: list[TokenLogprob] | None = None, free: str = ""
    ) -> Delta:
        """Return the delta of new text; `free` is the text before it, in which no stop string may end."""
        over = ended or last
        shown = self._cutter.add(free, last=False, stops=False) + self._cutter.add(text, last=over)
        self._digest.update(shown.encode(errors="surrogatepass"))
        reason = None
        if ended or self._cutter.stopped:
            reason = "stop"
        elif last:
            reason = "length" if self.completion_tokens >= self._max_tokens else "stop"
        if self._calls is None:
            return Delta(shown, reason, logprobs)
        content, calls = self._calls.add(shown, last=reason is not None)
        numbered = tuple(enumerate(calls, self._called))
        self._called += len(calls)
        return Delta(content, "tool_calls" if reason == "stop" and self._called else reason, logprobs, numbered)

    def _count(self, outputs: Mapping[str, bytes]) -> None:
        drafted, accepted, steps, by_position = self._before
        if (count := outputs.get("total_draft_tokens")) is not None:
            self.drafted = drafted + ints(count)[0]
            self.accepted = accepted + ints(outputs.get("total_accepted_draft_tokens"))[0]
        if (count := outputs.get("num_draft_steps")) is not None and ints(count)[0] >= 0:  # negative if unknown
            self.draft_steps = steps + ints(count)[0]
            now = ints(outputs.get("accepted_by_position"))
            self.accepted_by_position = [sum(pair) for pair in zip_longest(by_position, now, fillvalue=0)]


class TokenGeneration(GenerationState):
    """A completion that the model returns as token ids; the special tokens `markers` have the given texts."""

    def __init__(
        self,
        asked: RequestParameters,
        prompt: Prompt,
        tokenizer: Tokenizer,
        pieces: TextPieces,
        calls: ToolCallParser | None = None,
        markers: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(asked, prompt, calls)
        self._markers = markers or {}
        self._stream = TextStream(tokenizer, pieces)
        self._pieces = pieces
        self._ends = frozenset() if asked["ignore_eos"] else frozenset(tokenizer.end_ids)
        self._wants_logprobs = asked.top_logprobs is not None
        self.ids: list[int] = []  # generated so far, without end ids
        self._offsets: list[int] = []  # of the tokens in `ids`, if log probabilities are requested
        self._characters = 0
        self._is_plain = not (self._markers or asked.stop or calls or self._wants_logprobs)

    def take_ids(self, ids: Sequence[int]) -> str | Delta:
        """Process new tokens of a response that is not the last one; return the delta, or its text if it is all."""
        if not (self._is_plain and self._ends.isdisjoint(ids)):
            return self.take({"output_ids": array("i", ids).tobytes()}, last=False)
        self.completion_tokens += len(ids)
        self.ids += ids
        text = self._stream.add(ids, last=False)[0]
        self._digest.update(text.encode(errors="surrogatepass"))
        return text

    def take(self, outputs: Mapping[str, bytes], *, last: bool) -> Delta:
        ids = ints(outputs.get("output_ids"))
        if (length := outputs.get("sequence_length")) is not None:  # a token channel sends no padding
            ids = ids[: ints(length)[0]]
        until = next((place for place, token in enumerate(ids) if token in self._ends), len(ids))
        ended, ids = until < len(ids), ids[:until]
        # the text of the last of `min_tokens` tokens may complete a stop string
        free = ids[: max(0, self._min_tokens - 1 - self.completion_tokens)] if self._min_tokens else []
        self.completion_tokens += len(ids)
        self.ids += ids
        self._count(outputs)
        free_text = self._text(free, last=False)
        text = self._text(ids[len(free) :], last=last or ended)
        logprobs = self._logprobs(ids, outputs) if self._wants_logprobs else None
        return self._delta(text, ended=ended, last=last, logprobs=logprobs, free=free_text)

    def _text(self, ids: Sequence[int], *, last: bool) -> str:
        text = ""
        if self._wants_logprobs:
            for token in ids:
                self._offsets.append(self._characters + len(text))
                text += self._marked_text([token], last=False)
            ids = []
        text += self._marked_text(ids, last=last)
        self._characters += len(text)
        return text

    def _marked_text(self, ids: Sequence[int], *, last: bool) -> str:
        text, begun = "", 0
        for at, token in enumerate(ids):
            if token in self._markers:
                text += self._stream.add(ids[begun:at], last=True)[0] + self._markers[token]
                begun = at + 1
        return text + self._stream.add(ids[begun:], last=last)[0]

    def _logprobs(self, ids: Sequence[int], outputs: Mapping[str, bytes]) -> list[TokenLogprob]:
        """Return the log probabilities of the new tokens `ids`.

        The last response may also contain the values of earlier tokens, so only the last `len(ids)` values are used.
        """
        own = floats(outputs.get(LOG_PROBS))[-len(ids) :] if ids else []
        tops, top_ids = floats(outputs.get(TOP_LOG_PROBS)), ints(outputs.get(TOP_IDS))
        width = len(tops) // len(own) if own else 0
        words = [self._token(token, value) for token, value in zip(top_ids, tops, strict=True)]
        offsets = self._offsets[len(self._offsets) - len(ids) :]
        return [
            replace(
                self._token(token, value), top=tuple(words[place * width : (place + 1) * width]), offset=offsets[place]
            )
            for place, (token, value) in enumerate(zip(ids, own, strict=True))
        ]

    def _token(self, token: int, logprob: float) -> TokenLogprob:
        text = self._pieces.decode([token])
        return TokenLogprob(text, logprob, self._pieces.part(token) or text.encode())


class TextGeneration(GenerationState):
    """A completion returned as text; with `own_counts`, `num_output_tokens` counts one response instead of all."""

    def __init__(
        self, asked: RequestParameters, prompt: Prompt, calls: ToolCallParser | None = None, *, own_counts: bool
    ) -> None:
        super().__init__(asked, prompt, calls)
        self._own_counts = own_counts

    def take(self, outputs: Mapping[str, bytes], *, last: bool) -> Delta:
        if counted := ints(outputs.get("num_output_tokens")):
            before = self.completion_tokens if self._own_counts else 0
            self.completion_tokens = before + counted[0]
        if prompt := ints(outputs.get("num_input_tokens")):
            self.prompt_tokens = prompt[0]
        self._count(outputs)
        text = decode_text(outputs.get("text_output"))
        if self.completion_tokens < self._min_tokens:
            return self._delta("", ended=False, last=last, free=text)
        return self._delta(text, ended=False, last=last)


def speculation_metrics(text: GenerationState, draft_len: int) -> dict[str, Any] | None:
    """Return a completion's draft statistics in vLLM's `metrics.speculative_decoding` format, or None without counts.

    `acceptance_histogram[j]` is the number of steps that accepted exactly j draft tokens, j from 0 to `draft_len`.
    Unknown fields are left out: the histogram without positions, and the number of draft tokens, the acceptance rate
    and the histogram if steps had drafts but the engine does not count the draft tokens.
    """
    steps, accepted, drafted = text.draft_steps, text.accepted, text.drafted
    if steps is None:
        return None
    deepest = max(draft_len, len(text.accepted_by_position))
    reached = [steps, *text.accepted_by_position, *[0] * (deepest + 1)][: deepest + 2]
    counts = {"num_spec_steps": steps, "num_accepted_draft_tokens": accepted, "num_spec_tokens": deepest}
    found: dict[str, Any] = {"mean_acceptance_length": 1.0 + accepted / steps if steps else 1.0, **counts}
    if drafted or not steps:
        found |= {"draft_acceptance_rate": accepted / drafted if drafted else 0.0, "num_draft_tokens": drafted}
        if sum(text.accepted_by_position) == accepted:
            found["acceptance_histogram"] = [here - further for here, further in pairwise(reached)]
    return found


_escaped = json.encoder.encode_basestring_ascii  # `json.dumps` of a string, three times as fast
DONE = b"data: [DONE]\n\n"


class CompletionFormat:
    """Renders the response of one `/v1/completions` request, complete or as server-sent events."""

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, model: str, *, texts_a_prompt: int, include_usage: bool, draft_len: int, fingerprint: str = ""
    ) -> None:
        self._texts_a_prompt, self._draft_len = texts_a_prompt, draft_len
        self._fingerprint = fingerprint or None
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._event = f"data: {json.dumps(self._document(self.chunk_name))[:-1]}, "
        self._end = ', "usage": null}\n\n' if include_usage else "}\n\n"

    def chunk(self, index: int, delta: Delta, *, first: bool) -> bytes:
        choice = self._choice(index, delta, first)
        return f'{self._event}"choices": [{choice}]{self._end}'.encode()

    def text_chunk(self, index: int) -> Callable[[str], bytes]:
        """Return the function that renders the event of a text, as `chunk` does for one that is not the first."""
        mark = "\0"
        head, tail = self.chunk(index, Delta(mark), first=False).split(_escaped(mark).encode())
        return lambda text: b"%b%b%b" % (head, _escaped(text).encode(), tail)

    def usage_chunk(self, texts: Sequence[GenerationState]) -> bytes:
        """Return the event that has the token usage and an empty list of choices."""
        return f'{self._event}"choices": [], {json.dumps(self._counted(texts))[1:-1]}}}\n\n'.encode()

    def complete_response(self, texts: Sequence[GenerationState], deltas: Sequence[Delta]) -> bytes:
        choices = [self._document_choice(index, delta) for index, delta in enumerate(deltas)]
        return json.dumps({**self._document(self.object_name), "choices": choices, **self._counted(texts)}).encode()

    def _counted(self, texts: Sequence[GenerationState]) -> dict[str, Any]:
        """Return `usage` and, for a single completion, vLLM's speculative decoding metrics."""
        made = sum(text.completion_tokens for text in texts)
        read = sum(text.prompt_tokens for text in texts[:: self._texts_a_prompt])
        usage = {"usage": {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}}
        drafts = speculation_metrics(texts[0], self._draft_len) if len(texts) == 1 else None
        return usage | ({} if drafts is None else {"metrics": {"speculative_decoding": drafts}})

    def _document(self, kind: str) -> dict[str, Any]:
        return {**self._head, "object": kind, "system_fingerprint": self._fingerprint}

    def _choice(self, index: int, delta: Delta, first: bool) -> str:
        logprobs = _completion_logprobs(delta.logprobs)
        return (
            f'{{"index": {index}, "text": {json.dumps(delta.text)}, '
            f'"logprobs": {json.dumps(logprobs)}, "finish_reason": {json.dumps(delta.finish_reason)}}}'
        )

    def _document_choice(self, index: int, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = json.loads(self._choice(index, delta, False))
        return choice


class ChatFormat(CompletionFormat):
    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, index: int, delta: Delta, first: bool) -> str:
        role = '"role": "assistant", ' if first else ""
        logprobs = "null" if delta.logprobs is None else json.dumps(_chat_logprobs(delta.logprobs))
        content = json.dumps(delta.text or None if delta.tool_calls else delta.text)
        calls = ""
        if delta.tool_calls:
            calls = f', "tool_calls": {json.dumps([{"index": at, **_call(call)} for at, call in delta.tool_calls])}'
        return (
            f'{{"index": {index}, "delta": {{{role}"content": {content}{calls}}}, '
            f'"logprobs": {logprobs}, "finish_reason": {json.dumps(delta.finish_reason)}}}'
        )

    def _document_choice(self, index: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": delta.text or None if delta.tool_calls else delta.text,
                "refusal": None,
                **({"tool_calls": [_call(call) for _, call in delta.tool_calls]} if delta.tool_calls else {}),
            },
            "logprobs": None if delta.logprobs is None else _chat_logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [{**_token(token), "top_logprobs": [_token(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": [*token.raw]}


def _completion_logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.token: other.logprob for other in token.top} for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }
