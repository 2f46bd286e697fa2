# SPDX-License-Identifier: Apache-2.0
"""The prompts of a request, with size limits applied before tokenization."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from trtspec.checkpoints.tokenizer import RenderedText, Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.text import TextPieces
from trtspec.engine.prompts.chat import ChatTemplate
from trtspec.engine.prompts.prompt import ChatError, is_text
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError, invalid_request, too_long, unsupported
from trtspec.serving.gateway.parameters import RequestParameters

Prompt: TypeAlias = "tuple[int, ...] | str"

THREADED_BYTES = 4 << 10  # longer texts are tokenized in a thread so that the event loop keeps serving


class PromptReader:
    """Converts prompts to the model's input: token ids, or text for a model that tokenizes itself."""

    def __init__(self, config: GatewayConfig) -> None:
        root = Path(config.tokenizer)
        self._config = config
        self.tokenizer = Tokenizer(root)
        self.pieces = TextPieces(self.tokenizer)
        self._vocab_size = self.tokenizer.vocab_size
        self.bias_len = config.vocab_size or self._vocab_size  # logits of the model
        longest = max((len(token.encode()) for token in self.tokenizer.vocabulary), default=1)
        self.max_bytes = config.max_input_len * longest
        self._template = ChatTemplate(root, self.max_bytes)
        self._template.start()

    async def read(self, body: Mapping[str, Any], texts_a_prompt: int, *, chat: bool) -> list[Prompt]:
        """Return the prompts of a request; raises ApiError if they are invalid, too long or too many."""
        prompts = [] if chat else _prompts(body.get("prompt"))
        texts, most = texts_a_prompt * max(1, len(prompts)), self._config.limits.max_choices
        if texts > most:
            raise invalid_request(f"the request asks for {texts} completions; the limit is {most}", "n")
        if chat:
            text = await self._chat_text(body.get("messages"))
            return [await self._encoded(text, "messages", add_special_tokens=False)]
        adds = body.get("add_special_tokens") is not False
        return [await self._prompt(prompt, add_special_tokens=adds) for prompt in prompts]

    def check_bias(self, asked: RequestParameters) -> None:
        """Raise ApiError for a bias whose token id is unknown to the tokenizer or the model."""
        size = min(self._vocab_size, self.bias_len)
        if any(token >= size for token in asked.logit_bias):
            raise invalid_request(f"logit_bias has a token id outside 0 to {size - 1}", "logit_bias")

    def fitted(self, asked: RequestParameters, prompt: Prompt, param: str) -> RequestParameters:
        """Return the parameters with `max_tokens` set; raises ApiError if prompt and completion exceed the context.

        A model that tokenizes itself checks its own limit; the space left after its prompt is then a lower bound.
        """
        limit = self._config.max_seq_len
        prompt_len = len(prompt) if isinstance(prompt, tuple) else 0
        if prompt_len > min(self._config.max_input_len, limit - 1):
            raise too_long(prompt_len, 0, min(self._config.max_input_len, limit - 1), param)
        room = limit - (prompt_len or self._config.max_input_len)
        max_tokens = max(1, room) if asked.max_tokens is None else asked.max_tokens
        if prompt_len + max_tokens > limit:
            raise too_long(prompt_len, max_tokens, limit, param)
        return replace(asked, max_tokens=max_tokens)

    def stop_sequences(self, stops: Sequence[str]) -> list[list[int]]:
        """Return the stop strings that have a token sequence as ids, for the engine to stop at."""
        words = []
        for stop in stops:
            with suppress(TrtspecError):
                words.append(self.pieces.encode(stop))
        return words

    async def _chat_text(self, messages: Any) -> RenderedText:
        if not self._template.is_there:
            raise invalid_request(
                "this model has no chat template; use the completions API", "messages", "no_chat_template"
            )
        try:
            return await self._template.render_async(messages)
        except ChatError as error:
            raise ApiError(400, error.message, param=error.param, code=error.code) from None

    def as_sent(self, prompt: str, *, takes_flag: bool) -> str:
        """Return a prompt for a text model; raises ApiError if the model would alter a rendered chat.

        An engine that tokenizes itself adds its special tokens to every text.
        """
        if takes_flag or not isinstance(prompt, RenderedText):
            return prompt
        plain = self.tokenizer.as_plain(prompt)
        if plain is None:
            message = "this engine adds special tokens that the model's chat template does not contain"
            raise ApiError(400, message, param="messages", code="chat_not_served")
        return plain

    async def _prompt(self, prompt: str | list[int], *, add_special_tokens: bool) -> Prompt:
        if isinstance(prompt, str):
            text = prompt if add_special_tokens else RenderedText(prompt)
            return await self._encoded(text, "prompt", add_special_tokens=add_special_tokens)
        if self._config.text_level:
            raise unsupported("a prompt of token ids", "prompt")
        if not all(0 <= token < self._vocab_size for token in prompt):
            raise invalid_request(f"prompt has a token id outside 0 to {self._vocab_size - 1}", "prompt")
        return tuple(prompt)

    async def _encoded(self, text: str, param: str, *, add_special_tokens: bool) -> Prompt:
        size = len(text.encode())
        if size > self.max_bytes:
            raise invalid_request(
                f"{param} has {size:,} bytes; the limit is {self.max_bytes:,}", param, "context_length_exceeded"
            )
        if self._config.text_level:
            return text  # `RenderedText` if it has its special tokens
        encode = self.tokenizer.encode
        if size > THREADED_BYTES:
            ids = await asyncio.to_thread(encode, text, add_special_tokens)
        else:
            ids = encode(text, add_special_tokens)
        if not ids:
            raise invalid_request(f"{param} is empty", param)
        return tuple(ids)


def _prompts(prompt: Any) -> Sequence[str | list[int]]:
    """Return OpenAI's four forms as a list: a string, strings, token ids, or lists of token ids."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise invalid_request(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists", "prompt"
        )
    for each in prompt:
        if not (isinstance(each, str) and is_text(each)) and not _is_ids(each):
            raise invalid_request(
                "prompt has an item that is neither a string nor a list of token ids", "prompt", "invalid_type"
            )
    return prompt


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
