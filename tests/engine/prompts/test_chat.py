# SPDX-License-Identifier: Apache-2.0
"""Chat templates as transformers renders them, in a sandbox."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from trtspec.core.errors import CheckpointError
from trtspec.engine.prompts.chat import ChatTemplate
from trtspec.engine.prompts.prompt import ChatError

LLAMA = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message['role'] }}\n\n"
    "{{ message['content'] | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
BLOCKS = """{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] %}
{%- else %}
    {%- set first = 'none' %}
{%- endif %}
{{- first | tojson }}
{%- for message in messages %}
    {%- if loop.index0 > 8 %}{% break %}{% endif %}
    {% generation %}
    [{{ message.role }}] {{ message.content }}
    {% endgeneration %}
{%- endfor %}
"""
MESSAGES = [
    {"role": "system", "content": "Say <é>."},
    {"role": "user", "content": ' hi "there" '},
    {"role": "assistant", "content": "🙂"},
]


def template(root: Path, text: Any = None, **config: Any) -> ChatTemplate:
    document = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", **config}
    (root / "tokenizer_config.json").write_text(json.dumps(document))
    if text is not None:
        (root / "chat_template.jinja").write_text(text)
    return ChatTemplate(root, 1000, children=1)


@pytest.mark.slow
@pytest.mark.parametrize("text", [LLAMA, BLOCKS], ids=["llama", "blocks"])
def test_prompts_equal_transformers(text: str, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [MESSAGES], chat_template=text, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert template(tmp_path, text).render(MESSAGES) == expected[0]


def test_template_is_read_from_tokenizer_config(tmp_path: Path) -> None:
    assert template(tmp_path, chat_template=LLAMA).render(MESSAGES[1:2]).startswith("<s><|start|>user\n\nhi")
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ eos_token }}"}]
    assert template(tmp_path, chat_template=named).render(MESSAGES) == "</s>"


def test_content_parts_are_joined_and_developer_role_becomes_system(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    shown = template(tmp_path, "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}")
    assert shown.render([{"role": "developer", "content": parts}]) == "system=a\nb;"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        (["x"], "messages.0"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": "\ud800"}], "messages.0.content"),
        ([{"role": "user", "content": "x", "name": "\ud800"}], "messages.0.name"),
        ([{"role": "wizard", "content": "x"}], "messages.0.role"),
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content"),
    ],
)
def test_invalid_message_is_rejected_with_its_position(messages: Any, param: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError) as caught:
        template(tmp_path, LLAMA).render(messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 999999999 }}",
        "{{ 9 ** 99999 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
    ],
)
def test_forbidden_or_failing_template_operation_is_a_chat_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError):
        template(tmp_path, text).render(MESSAGES)


def test_model_without_template_rejects_chats(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="this model has no chat template"):
        template(tmp_path).render(MESSAGES)


def test_template_with_syntax_error_is_a_chat_error(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="the chat template cannot be used: Expected an expression"):
        template(tmp_path, "{% for %}").render(MESSAGES)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GROWING = (
    "{% set ns = namespace(x='" + "x" * 1000 + "') %}{% for i in range(99) %}{% set ns.x = ns.x OP ns.x %}{% endfor %}"
)
TAKES_TOO_MUCH = {
    "loops": LOOPS,
    "loop of one list": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "joined": GROWING.replace("OP", "~"),
    "added": GROWING.replace("OP", "+"),
    "lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "product": "{{ 'x' * 3000000000 }}",
    "power": "{{ 9 ** 999999999 }}",
    "center": "{{ 'x'.center(3000000000) }}",
    "ljust": "{{ 'x'.ljust(3000000000) }}",
    "zfill": "{{ 'x'.zfill(3000000000) }}",
    "percent": "{{ '%3000000000d' % 1 }}",
    "format": "{{ '{:3000000000d}'.format(1) }}",
    "format filter": "{{ '%3000000000d' | format(1) }}",
    "indent": "{{ ('x\n' * 1000) | indent(3000000) }}",
    "center filter": "{{ 'x' | center(3000000000) }}",
    "lipsum": "{{ lipsum(n=100000000) }}",
    "slice": "{{ range(10) | slice(1000000000) | list }}",
    "batch": "{{ range(2) | batch(1000000000, 'x') | list }}",
    "tojson": "{{ messages | tojson(indent=1000000000) }}",
    "replace": "{{ ('x' * 100000) | replace('x', 'x' * 100000) }}",
    "join": "{{ range(99999) | join('x' * 100000) }}",
    "wordwrap": "{{ ('x ' * 100000) | wordwrap(1, wrapstring='x' * 100000) }}",
    "regular": "{{ ('a' * 40) | urlize(9) }}" + LOOPS,
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
}
MALFORMED = {
    "break": "{% break %}",
    "continue": "{% continue %}",
    "31 for": "{% for x in [1] %}" * 31 + "{% endfor %}" * 31,
    "120 if": "{% if 1 %}" * 120 + "{% endif %}" * 120,
    "parentheses": "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "not": "{{ " + "not " * 30000 + "1 }}",
    "no end": "{% for x in messages %}",
    "unknown tag": "{% wizard %}",
    "unknown filter": "{{ 1 | wizard }}",
    "include": "{% include 'x' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "surrogate": "{{ '\\ud800' }}",
}


@pytest.mark.parametrize("name", [*TAKES_TOO_MUCH, *MALFORMED])
def test_expensive_or_malformed_template_is_an_error_within_seconds(name: str, tmp_path: Path) -> None:
    made = template(tmp_path, (TAKES_TOO_MUCH | MALFORMED)[name])
    made.start()
    began = time.monotonic()
    with pytest.raises(ChatError) as caught:
        made.render(MESSAGES)
    assert (caught.value.exit_code == 1 and "chat template" in caught.value.message) or "longer than" in str(
        caught.value
    )
    assert time.monotonic() - began < 20  # 2 s on an idle machine; the limit is on CPU time
    made.close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([{"name": ["x"], "template": "y"}], "not all named templates"),
        (["x"], "not all named templates"),
        (7, "neither text nor a list"),
        ([{"name": "default", "template": ["x"]}], "neither text nor a list"),
        ({"default": {}}, "neither text nor a list"),
        ("x" * 1100000, "larger than"),
    ],
)
def test_template_of_invalid_type_or_size_is_rejected(config: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        template(tmp_path, chat_template=config)


def test_template_file_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with pytest.raises(CheckpointError, match="not UTF-8"):
        template(tmp_path)


def test_chats_are_rendered_while_another_one_runs_into_its_time_limit(tmp_path: Path) -> None:
    made = template(tmp_path, "{% if messages[0].content == 'x' %}" + LOOPS + "{% endif %}ok")
    made = ChatTemplate(tmp_path, 1000, children=2)
    good, bad = ([{"role": "user", "content": content}] for content in ("y", "x"))

    async def both() -> tuple[list[float], float]:
        await asyncio.gather(made.render_async(good), made.render_async(good))
        began, took = time.monotonic(), []
        slow = asyncio.ensure_future(made.render_async(bad))
        while not slow.done():
            asked = time.monotonic()
            assert await made.render_async(good) == "ok"
            took.append(time.monotonic() - asked)
            await asyncio.sleep(0.01)
        with pytest.raises(ChatError, match="was stopped: it took"):
            await slow
        return took, time.monotonic() - began

    took, seconds = asyncio.run(both())
    made.close()
    assert len(took) > 5
    assert sorted(took)[len(took) // 2] < 0.2
    assert seconds < 20


def test_child_process_is_replaced_after_it_was_killed(tmp_path: Path) -> None:
    made = template(tmp_path, "{% if messages[0].content == 'x' %}{{ 'x'.center(3000000000) }}{% endif %}ok")
    for content, fails in (("y", False), ("x", True), ("y", False)):
        with pytest.raises(ChatError) if fails else nullcontext():
            assert made.render([{"role": "user", "content": content}]) == "ok"
    made.close()
