# SPDX-License-Identifier: Apache-2.0
"""Chat templates as transformers renders them, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.errors import CheckpointError
from trtspec.prompts.chat import ChatTemplate
from trtspec.prompts.messages import ChatError

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
    return ChatTemplate(root)


@pytest.mark.slow
@pytest.mark.parametrize("text", [LLAMA, BLOCKS], ids=["llama", "blocks"])
def test_prompts_are_those_of_transformers(text: str, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [MESSAGES], chat_template=text, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert template(tmp_path, text).render(MESSAGES, 1000) == expected[0]


def test_a_template_comes_from_the_configuration_too(tmp_path: Path) -> None:
    assert template(tmp_path, chat_template=LLAMA).render(MESSAGES[1:2], 1000).startswith("<s><|start|>user\n\nhi")
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ eos_token }}"}]
    assert template(tmp_path, chat_template=named).render(MESSAGES, 1000) == "</s>"


def test_parts_are_joined_and_developers_are_the_system(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    shown = template(tmp_path, "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}")
    assert shown.render([{"role": "developer", "content": parts}], 1000) == "system=a\nb;"


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
        ([{"role": "tool", "content": "x"}], "messages.0"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages.0.content"),
    ],
)
def test_messages_that_are_none_are_named(messages: Any, param: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError) as caught:
        template(tmp_path, LLAMA).render(messages, 1000)
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
def test_what_a_template_may_not_do_is_the_requests_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ChatError):
        template(tmp_path, text).render(MESSAGES, 1000)


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="this model has no chat template"):
        template(tmp_path).render(MESSAGES, 1000)


def test_a_broken_template_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        template(tmp_path, "{% for %}")
