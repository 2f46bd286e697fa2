# SPDX-License-Identifier: Apache-2.0
"""The prompts of a request: parsing and tokenization, with size limits checked before tokenization."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from trtspec.checkpoints.tokenizer import RenderedText, Tokenizer
from trtspec.engine.generation.text import TextPieces
from trtspec.engine.prompts.chat import ChatTemplate
from trtspec.engine.prompts.prompt import ChatError, is_text
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError, invalid_request, too_long, unsupported
from trtspec.serving.gateway.parameters import RequestParameters
from trtspec.serving.gateway.tool_calls import find_format
from trtspec.serving.gateway.tools import ToolOptions

Prompt: TypeAlias = "tuple[int, ...] | str"

OTHER_VALUES = 10_000  # allowance for values other than token ids and biases
THREADED_BYTES = 4 << 10  # longer texts are tokenized in a thread so that the event loop is not blocked


class PromptReader:
    """Converts prompts to the model's input: token ids, or text for a model with its own tokenizer."""

    def __init__(self, config: GatewayConfig) -> None:
        root = Path(config.tokenizer)
        self._config = config
        self.tokenizer = Tokenizer(root)
        self.pieces = TextPieces(self.tokenizer)
        self._vocab_size = self.tokenizer.vocab_size
        self.bias_len = config.vocab_size or self._vocab_size  # logits per position
        longest = max((len(token.encode()) for token in self.tokenizer.vocabulary), default=1)
        self.max_bytes = config.max_input_len * longest
        self._template = ChatTemplate(root, self.max_bytes)
        self._template.start()
        self.tool_format = find_format(config.tool_format, self._template.source_for_tools)
        marks = self.tool_format.markers if self.tool_format else ()
        vocabulary, silent = self.tokenizer.vocabulary, self.tokenizer.silent
        # markers that are special tokens, which decoding omits
        self.marker_ids = {vocabulary[mark]: mark for mark in marks if vocabulary.get(mark) in silent}

    @property
    def most_values(self) -> int:
        """Return the maximum number of JSON values allowed in a request."""
        return self._config.limits.max_choices * self._config.max_input_len + self.bias_len + OTHER_VALUES

    def check_sizes(self, body: Mapping[str, Any]) -> None:
        """Raise ApiError if the unparsed prompt or `logit_bias` has more entries than a valid request can have."""
        bias, prompt = body.get("logit_bias"), body.get("prompt")
        if isinstance(bias, dict) and len(bias) > self.bias_len:
            raise invalid_request(
                f"logit_bias has {len(bias):,} entries, but the model has {self.bias_len:,} token ids", "logit_bias"
            )
        if not isinstance(prompt, list) or not prompt:
            return
        most, longest = self._config.limits.max_choices, self._config.max_input_len
        several = not isinstance(prompt[0], int)
        if several and len(prompt) > most:
            message = f"prompt has {len(prompt):,} items; one request can have at most {most} completions"
            raise invalid_request(message, "prompt")
        for each in prompt if several else [prompt]:
            if isinstance(each, list) and len(each) > longest:
                raise too_long(len(each), 0, longest, "prompt")

    async def read(
        self, body: Mapping[str, Any], texts_a_prompt: int, *, chat: bool, tools: ToolOptions | None = None
    ) -> list[Prompt]:
        """Return the prompts of a request; raises ApiError if they are invalid, too long or too many.

        `texts_a_prompt` is the number of completions per prompt (`n`). The chat template gets the `tools`.
        """
        prompts = [] if chat else _prompts(body.get("prompt"))
        texts, most = texts_a_prompt * max(1, len(prompts)), self._config.limits.max_choices
        if texts > most:
            raise invalid_request(f"the request asks for {texts} completions; the limit is {most}", "n")
        if chat:
            if not self._template.is_there:
                raise invalid_request(
                    "this model has no chat template; use the completions API", "messages", "no_chat_template"
                )
            try:
                described = [tool.document for tool in tools.tools] if tools else None
                text = await self._template.render_async(body.get("messages"), described)
            except ChatError as error:
                raise ApiError(400, error.message, param=error.param, code=error.code) from None
            return [await self._encoded(text, "messages", add_special_tokens=False)]
        adds = body.get("add_special_tokens") is not False
        return [await self._prompt(prompt, add_special_tokens=adds) for prompt in prompts]

    def with_calls(self, asked: RequestParameters) -> RequestParameters:
        """Return the parameters with the grammar of the calls that the request requires.

        Raises ApiError if the request has tools, but the chat template does not render them, or the model's format of
        calls is unknown.
        """
        tools = asked.tools
        if tools is None:
            return asked
        if "tools" not in self._template.source_for_tools:
            raise invalid_request("the model's chat template does not render tools", "tools", "unsupported_parameter")
        if tools.must_call:
            key = self.tool_format.arguments if self.tool_format else "arguments"
            return replace(asked, constraint=tools.constraint(key), constraint_param="tool_choice")
        if self.tool_format is None:
            message = "the format of this model's tool calls is unknown; set serving.tools.format in the recipe, or"
            raise invalid_request(f"{message} tool_choice to required", "tool_choice", "unsupported_parameter")
        return asked

    def check_bias(self, asked: RequestParameters) -> None:
        """Raise ApiError if `logit_bias` has a token id outside the vocabulary of the tokenizer or the model."""
        size = min(self._vocab_size, self.bias_len)
        if any(token >= size for token in asked.logit_bias):
            raise invalid_request(f"logit_bias has a token id outside 0 to {size - 1}", "logit_bias")

    def fitted(self, asked: RequestParameters, prompt: Prompt, param: str) -> RequestParameters:
        """Return the parameters with `max_tokens` set; raises ApiError if prompt and completion exceed the context.

        The token count of a text prompt is unknown, so the default of `max_tokens` assumes the longest allowed prompt.
        The model that tokenizes the text checks the limit itself.
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

    def as_sent(self, prompt: str, *, takes_flag: bool) -> str:
        """Return the text of a prompt as sent to a model with its own tokenizer.

        Without `takes_flag` (an input that disables it), the model adds special tokens to every text. They are then
        removed from a rendered chat. Raises ApiError if that would alter the chat's tokens.
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
            return text  # a `RenderedText` already contains its special tokens
        encode = self.tokenizer.encode
        if size > THREADED_BYTES:
            ids = await asyncio.to_thread(encode, text, add_special_tokens)
        else:
            ids = encode(text, add_special_tokens)
        if not ids:
            raise invalid_request(f"{param} is empty", param)
        return tuple(ids)


def _prompts(prompt: Any) -> Sequence[str | list[int]]:
    """Return the `prompt` field as a list of strings or token id lists; raises ApiError for other types.

    OpenAI's API accepts a string, a list of strings, a list of token ids, or a list of such lists.
    """
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
