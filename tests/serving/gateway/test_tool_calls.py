# SPDX-License-Identifier: Apache-2.0
"""Tool calls in texts of the formats, at any division of the text."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.serving.gateway.tool_calls import FORMATS, HERMES, LLAMA3_JSON, MISTRAL, ToolCallParser, find_format

NAMES = ("weather", "add")
CALL = '{"name": "weather", "arguments": {"city": "é \\"}{"}}'
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "é \\"}{"}}'
ADD = '{"name": "add", "arguments": {}}'
NAN = '{"name": "add", "arguments": {"a": NaN}}'
WEATHER = ("weather", {"city": 'é "}{'})


def parse(pieces: list[str], form: str, *, parallel: bool = True, forced: bool = False) -> tuple[str, list[Any]]:
    parser = ToolCallParser(FORMATS[form], NAMES, parallel=parallel, forced=forced)
    content, found = "", []
    for at, piece in enumerate(pieces):
        text, calls = parser.add(piece, last=at == len(pieces) - 1)
        content += text
        found += [(call.name, json.loads(call.arguments)) for call in calls]
    return content, found


def divided(text: str, seed: int) -> list[str]:
    chosen = random.Random(seed)
    cuts = sorted({0, len(text), *(chosen.randrange(len(text) + 1) for _ in range(chosen.randint(0, len(text))))})
    return [text[one:other] for one, other in pairwise(cuts)] or [""]


TEXTS: list[tuple[str, str, str, list[Any]]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [WEATHER]),
    ("hermes", f"Let me see. \n<tool_call>{CALL}</tool_call>\n<tool_call>{ADD}</tool_call> Done", "Let me see.Done",
     [WEATHER, ("add", {})]),
    ("hermes", f"<tool_call>{CALL}", "", [WEATHER]),  # the end marker is a stop token of the model
    ("hermes", "no call < here <tool_ \n", "no call < here <tool_ \n", []),
    ("hermes", '{"name": "add"} is JSON', '{"name": "add"} is JSON', []),
    ("hermes", '<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', []),
    ("hermes", "<tool_call>{bad}</tool_call>", "<tool_call>{bad}</tool_call>", []),
    ("hermes", f"<tool_call>{NAN}", f"<tool_call>{NAN}", []),
    ("hermes", '<tool_call>\n{"name": "weather", "argu', '<tool_call>\n{"name": "weather", "argu', []),
    ("hermes", "<tool_call>", "<tool_call>", []),
    ("hermes", f'<tool_call>{CALL}</tool_call><tool_call>{{"na', '<tool_call>{"na', [WEATHER]),
    ("llama3_json", f"  {LLAMA_CALL}", "", [WEATHER]),
    ("llama3_json", f"{LLAMA_CALL}; {CALL}", "", [WEATHER, WEATHER]),
    ("llama3_json", f"<|python_tag|>{LLAMA_CALL}", "", [WEATHER]),
    ("llama3_json", '{"answer": 42}', '{"answer": 42}', []),
    ("llama3_json", f"It is {LLAMA_CALL}", f"It is {LLAMA_CALL}", []),
    ("mistral", f"[TOOL_CALLS][{CALL}, {ADD}]", "", [WEATHER, ("add", {})]),
    ("mistral", f"[{CALL}]", "", [WEATHER]),  # without the special token, as engines with text output send it
    ("mistral", "[1, 2]", "[1, 2]", []),
    ("mistral", f"Yes.[TOOL_CALLS] [{CALL}", "Yes.", [WEATHER]),
    ("mistral", "", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
def test_calls_and_content_are_found_at_any_division(form: str, text: str, content: str, calls: list[Any]) -> None:
    for seed in range(60):
        assert parse(divided(text, seed), form) == (content, calls)
    assert parse([*text] or [""], form) == (content, calls)


def test_forced_text_is_a_list_of_calls() -> None:
    for seed in range(60):
        assert parse(divided(f"[{CALL}, {ADD}]", seed), "hermes", forced=True) == ("", [WEATHER, ("add", {})])
        incomplete = '[{"name": "weather", "arguments": {"ci'
        assert parse(divided(incomplete, seed), "hermes", forced=True) == (incomplete, [])


def test_without_parallel_only_the_first_call_is_returned() -> None:
    text = f"a <tool_call>{ADD}</tool_call><tool_call>{CALL}</tool_call> b"
    for seed in range(60):
        assert parse(divided(text, seed), "hermes", parallel=False) == ("a", [("add", {})])


def test_arguments_as_text_are_an_object() -> None:
    assert parse([json.dumps({"name": "add", "arguments": '{"a": 1}'})], "llama3_json") == ("", [("add", {"a": 1})])


@given(text=st.text('{}[]":,\\ abc<>/tol_c', max_size=80), seed=st.integers(0, 9), form=st.sampled_from([*FORMATS]))
def test_text_without_calls_stays_the_same(text: str, seed: int, form: str) -> None:
    assert parse(divided(text, seed), form) == (text, [])


def test_ids_are_openais_or_as_long_as_the_template_requires() -> None:
    assert re.fullmatch("call_[a-zA-Z0-9]{24}", HERMES.new_id())
    assert re.fullmatch("[a-zA-Z0-9]{9}", MISTRAL.new_id())
    assert HERMES.new_id() != HERMES.new_id()


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>\\n' }}", "hermes"),
        ("<tool_call>\n<function=", None),
        ('{{ "[TOOL_CALLS] [" }}', "mistral"),
        ("[TOOL_CALLS]name[ARGS]", None),
        ("{{ '\"parameters\": ' }}", "llama3_json"),
        ("{{ message.content }}", None),
    ],
)
def test_format_is_recognized_by_the_chat_template(template: str, name: str | None) -> None:
    found = find_format("", template)
    assert (found and found.name) == name
    assert find_format("llama3_json", template) is LLAMA3_JSON
