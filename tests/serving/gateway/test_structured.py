# SPDX-License-Identifier: Apache-2.0
"""`response_format` and the tensors of guided decoding, with the quickstart on a real tritonserver."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.serving.gateway.running import RunningGateway
from tests.serving.triton.serving import Served
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    import openai

pytestmark = pytest.mark.triton
pytest.importorskip("llguidance", reason="needs llguidance")

SCHEMA = {
    "type": "object", "required": ["id", "tags"], "additionalProperties": False,
    "properties": {"id": {"type": "integer", "maximum": 999, "minimum": 0},
                   "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3}},
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "item", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def client(entry: RunningGateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{entry.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("draft_tokens", [None, 0])
def test_chat_with_a_schema_returns_json_that_fits_it(client: openai.OpenAI, draft_tokens: int | None) -> None:
    answer: Any = client.chat.completions.create(
        model="quickstart", messages=[{"role": "user", "content": "an item"}], max_tokens=120, temperature=0,
        response_format=FORMAT, extra_body={"num_draft_tokens": draft_tokens},
    )  # type: ignore[call-overload]  # fmt: skip
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_streamed_completion_with_json_object_is_an_object(client: openai.OpenAI) -> None:
    events = client.completions.create(
        model="quickstart", prompt='[{"id": 612, "name": "ada"}, ', max_tokens=100, temperature=0, stream=True,
        extra_body={"response_format": {"type": "json_object"}},
    )  # fmt: skip
    text = "".join(event.choices[0].text for event in events if event.choices)
    assert isinstance(json.loads(text), dict)


TAG = {"enum": ["red", "green"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "paint", "parameters": {
        "type": "object", "required": ["tag"], "additionalProperties": False,
        "properties": {"tag": {"$ref": "#/$defs/tag"}}, "$defs": {"tag": TAG}}}},
    {"type": "function", "function": {"name": "wait"}},
]  # fmt: skip


@pytest.mark.parametrize("name", ["paint", "wait", None])
def test_required_calls_fit_their_schemas(name: str | None, client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": name}} if name else "required"
    answer: Any = client.chat.completions.create(
        model="quickstart", messages=[{"role": "user", "content": "paint it"}], max_tokens=200, temperature=0,
        tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
    )  # fmt: skip
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert call.function.name in ({name} if name else {"paint", "wait"})
    arguments = json.loads(call.function.arguments)
    if call.function.name == "paint":
        jsonschema.validate(arguments["tag"], TAG)


def test_unsupported_schema_is_a_400_with_the_reason(client: openai.OpenAI) -> None:
    import openai

    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"oneOf": [{}, {"type": "null"}]}}}
    with pytest.raises(openai.BadRequestError, match="the json_schema guide is not supported: oneOf"):
        client.completions.create(model="quickstart", prompt="x", extra_body={"response_format": form})


def test_ensemble_generates_text_of_a_regular_expression(served: Served) -> None:
    guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(ab|cd){4}"}
    answer = served.client.generate({"text_input": "id", "max_tokens": 30, **guided})
    assert re.fullmatch("(ab|cd){4}", answer["text_output"])
    with pytest.raises(TrtspecError, match="guided_decoding_guide requires guided_decoding_guide_type"):
        served.client.generate({"text_input": "id", "max_tokens": 30, "guided_decoding_guide": "{}"})
