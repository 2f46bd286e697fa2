# SPDX-License-Identifier: Apache-2.0
"""Errors for chat messages that cannot be rendered as a prompt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.gateway.running import with_template
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.prompts import PromptReader


def refused(tokenizer: Path, messages: Any) -> dict[str, Any]:
    prompts = PromptReader(GatewayConfig("", 0, "m", "t", str(tokenizer), 64, 32))
    with pytest.raises(ApiError) as caught:
        asyncio.run(prompts.read({"messages": messages}, 1, chat=True))
    assert caught.value.status == 400
    return dict(json.loads(caught.value.body)["error"])


def test_model_without_chat_template_refers_to_the_completions_api(pair_master: Path) -> None:
    error = refused(pair_master / "target", [{"role": "user", "content": "x"}])
    assert error["message"] == "this model has no chat template; use the completions API"
    assert (error["param"], error["code"]) == ("messages", "no_chat_template")


ARGUMENTS = "messages.0.tool_calls.0.function"


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "user"}, "messages.0.content", "invalid_value"),
        ({"role": "function", "content": "x"}, "messages.0", "unsupported_parameter"),
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id", "invalid_value"),
        ({"role": "tool", "tool_call_id": "a"}, "messages.0.content", "invalid_value"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages.0.tool_calls", "invalid_value"),
        ({"role": "assistant", "tool_calls": [{}] * 129}, "messages.0.tool_calls", "invalid_value"),
        ({"role": "assistant", "tool_calls": [call(id=1)]}, "messages.0.tool_calls.0.id", "invalid_value"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages.0.tool_calls.0", "invalid_value"),
        ({"role": "assistant", "tool_calls": [call("[1]")]}, f"{ARGUMENTS}.arguments", "invalid_value"),
        ({"role": "assistant", "tool_calls": [call({"a": 1})]}, f"{ARGUMENTS}.arguments", "invalid_value"),
        ({"role": "assistant", "tool_calls": [call("[" * 9999)]}, f"{ARGUMENTS}.arguments", "invalid_value"),
        ({"role": "user", "content": "x" * 100_000}, "messages", "context_length_exceeded"),
    ],
)
def test_invalid_message_is_rejected_with_its_position(
    message: Any, param: str, code: str, pair_master: Path, tmp_path: Path
) -> None:
    error = refused(with_template(pair_master / "target", tmp_path / "tokenizer"), [message])
    assert (error["param"], error["code"]) == (param, code)


def test_chat_template_exceeding_its_time_limit_is_rejected_with_400(pair_master: Path, tmp_path: Path) -> None:
    root = with_template(pair_master / "target", tmp_path / "t")
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (root / "chat_template.jinja").write_text(loops)
    error = refused(root, [{"role": "user", "content": "x"}])
    assert error["code"] == "chat_template_failed"
    assert error["message"].startswith("the chat template was stopped: it took")
