# SPDX-License-Identifier: Apache-2.0
"""Responses in OpenAI's format: documents, and stream events whose constant bytes are built once per request."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from trtspec.serving.gateway.generation import Delta, GenerationState, TokenLogprob, speculation_metrics

DONE = b"data: [DONE]\n\n"


class CompletionFormat:
    """The format of one response."""

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, model: str, *, texts_a_prompt: int, include_usage: bool, draft_len: int, fingerprint: str = ""
    ) -> None:
        self._texts_a_prompt, self._draft_len = texts_a_prompt, draft_len
        self._fingerprint = fingerprint or None
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._event = f"data: {self._opened(self.chunk_name)}, "
        self._end = ', "usage": null}\n\n' if include_usage else "}\n\n"

    def chunk(self, index: int, delta: Delta, *, first: bool) -> bytes:
        """Return the event of a delta."""
        choice = self._choice(index, delta, first)
        return f'{self._event}"choices": [{choice}]{self._end}'.encode()

    def usage_chunk(self, texts: Sequence[GenerationState]) -> bytes:
        """Return the event with the usage and an empty list of choices."""
        return f'{self._event}"choices": [], {json.dumps(self._counted(texts))[1:-1]}}}\n\n'.encode()

    def whole(self, texts: Sequence[GenerationState], deltas: Sequence[Delta]) -> bytes:
        """Return the body of a non-streamed response."""
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

    def _opened(self, kind: str) -> str:
        return json.dumps(self._document(kind))[:-1]

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
    """The format of a chat response."""

    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, index: int, delta: Delta, first: bool) -> str:
        role = '"role": "assistant", ' if first else ""
        logprobs = "null" if delta.logprobs is None else json.dumps(_chat_logprobs(delta.logprobs))
        return (
            f'{{"index": {index}, "delta": {{{role}"content": {json.dumps(delta.text)}}}, '
            f'"logprobs": {logprobs}, "finish_reason": {json.dumps(delta.finish_reason)}}}'
        )

    def _document_choice(self, index: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": None if delta.logprobs is None else _chat_logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }


def _chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        {**_token(token.token, token.logprob), "top_logprobs": [_token(*other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _completion_logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token.token))
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
        "text_offset": offsets[:-1],
    }
