# SPDX-License-Identifier: Apache-2.0
"""Tool calls through the gateway with OpenAI's unmodified client; a double of Triton writes the model's texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import openai
import pytest

from tests.engine.grammars import MERGED, SYMBOLS, save_tokenizer
from tests.serving.gateway.running import Fake, RunningGateway, fake_triton, serve_gateway
from tests.serving.triton.answering import response
from tests.serving.triton.artifact import make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.grammar_compiler import GrammarCompiler
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.tool_calls import HERMES, ToolCallParser
from trtspec.serving.gateway.tools import read_tools
from trtspec.serving.triton.nvidia_compat import GUIDES

# As published templates do: the tools in JSON, the calls in the model's format, the results by role.
TEMPLATES = {
    "hermes": """{% if tools %}{{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}
{% endfor %}assistant:""",
    "mistral": """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception("ids have 9 characters") }}{% endif %}
[TOOL_CALLS]{% endfor %}{% endfor %}""",
    "unknown": "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}",
    "none": "{{ messages[0].content }}",
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Weather now", "parameters": CITY}},
    {"type": "function", "function": {"name": "time"}},
]
WEATHER = '{"name": "weather", "arguments": {"city": "Köln"}}'
TIME = '{"name": "time", "arguments": {}}'
ASK: Any = [{"role": "user", "content": "Weather in Köln?"}]


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_triton() as fake, ExitStack() as inputs:
        for name in GUIDES:
            inputs.enter_context(fake.taking(name))
        yield fake


@pytest.fixture(scope="module")
def gateways(fake: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningGateway]]:
    with ExitStack() as running:
        found = {}
        for name, template in TEMPLATES.items():
            tokenizer = make_tokenizer(tmp_path_factory.mktemp(name) / "tokenizer")
            (tokenizer / "chat_template.jinja").write_text(template)
            config = GatewayConfig(fake.address, 0, "m", "tensorrt_llm", str(tokenizer), 9000, 4000)
            found[name] = running.enter_context(serve_gateway(config))
        yield found


class Chat:
    """A client of a gateway, and what the model received last."""

    def __init__(self, gateway: RunningGateway, fake: Fake) -> None:
        self._client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=30)
        self._fake, self._tokenizer = fake, Tokenizer(Path(gateway.config.tokenizer))

    def create(self, *texts: str, **asked: Any) -> Any:
        rows = [self._tokenizer.encode(text, add_special_tokens=False) for text in texts]
        self._fake.made.clear()
        self._fake.serve = lambda model, inputs: [
            response(output_ids=[[row]], sequence_length=[[len(row)]]) for row in rows
        ]
        body = {"model": "m", "messages": ASK, "tools": TOOLS, "max_tokens": 500, **asked}
        return self._client.chat.completions.create(**body)

    @property
    def prompt(self) -> str:
        return self._tokenizer.decode(self._fake.made[-1].inputs["input_ids"][0].tolist())

    @property
    def guide(self) -> Any:
        inputs = self._fake.made[-1].inputs
        return json.loads(inputs[GUIDES[1]][0][0]) if GUIDES[1] in inputs else None


@pytest.fixture
def chat(gateways: dict[str, RunningGateway], fake: Fake) -> Chat:
    return Chat(gateways["hermes"], fake)


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def test_auto_returns_calls_and_content(chat: Chat) -> None:
    answer = chat.create(f"One moment.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{TIME}</tool_call>")
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    assert called(choice.message) == [("weather", {"city": "Köln"}), ("time", {})]
    assert [call.type for call in choice.message.tool_calls] == ["function", "function"]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert chat.guide is None
    assert '"name": "weather", "description": "Weather now"' in chat.prompt


def test_auto_without_a_call_is_an_ordinary_answer(chat: Chat) -> None:
    (choice,) = chat.create("It rains. <b> ").choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "It rains. <b> ")
    assert choice.message.tool_calls is None


def test_none_neither_describes_tools_nor_parses_calls(chat: Chat) -> None:
    text = f"<tool_call>{WEATHER}</tool_call>"
    (choice,) = chat.create(text, tool_choice="none").choices
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("stop", text, None)
    assert "weather" not in chat.prompt


def test_required_and_named_calls_have_a_grammar(chat: Chat) -> None:
    (choice,) = chat.create(f"[{WEATHER}, {TIME}]", tool_choice="required").choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert called(choice.message) == [("weather", {"city": "Köln"}), ("time", {})]
    assert [each["properties"]["name"]["const"] for each in chat.guide["items"]["anyOf"]] == ["weather", "time"]
    assert chat.guide["$defs"]["t0"] == CITY
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = chat.create(f"[{WEATHER}]", tool_choice=named).choices
    assert called(choice.message) == [("weather", {"city": "Köln"})]
    assert (chat.guide["maxItems"], len(chat.guide["items"]["anyOf"])) == (1, 1)
    assert "time" in chat.prompt


def test_texts_of_the_grammar_are_calls_that_fit_their_schemas(tmp_path: Path) -> None:
    """Random texts of the real grammar, for schemas with references to themselves; validated by jsonschema."""
    pytest.importorskip("llguidance", reason="needs llguidance")
    properties = {"v": {"$ref": "#/$defs/value"}, "next": {"$ref": "#"}}
    node = {"type": "object", "required": ["v"], "additionalProperties": False, "properties": properties,
            "$defs": {"value": {"enum": ["ab", 12, None]}}}  # fmt: skip
    schemas = {"list": node, "weather": CITY, "time": {}}
    tools = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in schemas.items()]
    options = read_tools({"tools": tools, "tool_choice": "required"})
    assert options is not None
    tokenizer = Tokenizer(save_tokenizer(tmp_path / "tokenizer", [*SYMBOLS, *MERGED]))
    compiler, chosen, found = GrammarCompiler(tokenizer, tokenizer.vocab_size), random.Random(0), list[Any]()
    for _ in range(30):
        matcher, ids = compiler.matcher(options.constraint("arguments"), (0,)), list[int]()
        while not matcher.is_complete and len(ids) < 400:
            bits = np.zeros((tokenizer.vocab_size + 31) // 32, np.int32)
            matcher.fill(bits)
            allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
            closing = (
                [token for token in allowed if set(tokenizer.decode([token])) <= {*'"}]'}] if len(ids) > 60 else []
            )
            ids.append(chosen.choice(closing or [token for token in allowed if token]))
            assert matcher.push(ids[-1])
        if matcher.is_complete:
            parser = ToolCallParser(HERMES, options.names, parallel=True, forced=True)
            content, calls = parser.add(tokenizer.decode(ids), last=True)
            assert (content, len(calls) > 0) == ("", True)
            found += calls
    compiler.close()
    for call in found:
        jsonschema.Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))
    assert {call.name for call in found} == {*schemas}


def test_incomplete_call_is_content(chat: Chat) -> None:
    text = '[{"name": "weather", "arguments": {"city": "K'
    (choice,) = chat.create(text, tool_choice="required", max_tokens=len(text)).choices
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("length", text, None)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_stream_has_each_call_with_its_index(choice: str, chat: Chat) -> None:
    texts = {
        "auto": ["On", "e moment.\n<too", "l_call>", WEATHER[:9], WEATHER[9:], "</tool_call>\n<tool_call>", TIME],
        "required": ["[", WEATHER[:30], WEATHER[30:], ",", TIME, "]"],
    }[choice]
    chunks = [chunk.choices[0] for chunk in chat.create(*texts, tool_choice=choice, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ("One moment." if choice == "auto" else "")
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert [(call.index, call.type, call.function.name) for call in calls] == [
        (0, "function", "weather"), (1, "function", "time"),
    ]  # fmt: skip
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Köln"}, {}]
    assert [chunk.delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    assert [chunk.finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "tool_calls"]


def test_one_call_at_most_without_parallel_calls(chat: Chat) -> None:
    text = f"<tool_call>{TIME}</tool_call><tool_call>{WEATHER}</tool_call>"
    (choice,) = chat.create(text, parallel_tool_calls=False).choices
    assert called(choice.message) == [("time", {})]
    chat.create(f"[{TIME}]", parallel_tool_calls=False, tool_choice="required")
    assert chat.guide["maxItems"] == 1


def test_calls_and_results_of_earlier_turns_reach_the_template(chat: Chat) -> None:
    """The client's own object of the first answer is sent back, as its documentation shows."""
    first = chat.create(f"<tool_call>{WEATHER}</tool_call>").choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "rain"}
    (choice,) = chat.create("It rains.", messages=[*ASK, first, result]).choices
    assert choice.message.content == "It rains."
    assert chat.prompt.endswith(f"assistant: <tool_call>{WEATHER}</tool_call>tool: rainassistant:")


def test_mistrals_ids_fit_its_template(gateways: dict[str, RunningGateway], fake: Fake) -> None:
    chat = Chat(gateways["mistral"], fake)
    first = chat.create(f"[TOOL_CALLS][{WEATHER}]").choices[0].message
    assert called(first) == [("weather", {"city": "Köln"})]
    chat.create("a", messages=[*ASK, first])
    first.tool_calls[0].id = "call_1"
    with pytest.raises(openai.BadRequestError, match="ids have 9 characters"):
        chat.create("a", messages=[*ASK, first])


def test_models_that_cannot_call_tools_are_a_400_by_name(gateways: dict[str, RunningGateway], fake: Fake) -> None:
    with pytest.raises(openai.BadRequestError, match="the model's chat template does not render tools") as caught:
        Chat(gateways["none"], fake).create("a")
    assert caught.value.param == "tools"
    with pytest.raises(openai.BadRequestError, match=r"the format .* is unknown; set serving.tools.format") as caught:
        Chat(gateways["unknown"], fake).create("a")
    assert caught.value.param == "tool_choice"
    answer = Chat(gateways["unknown"], fake).create(f"[{TIME}]", tool_choice="required")
    assert called(answer.choices[0].message) == [("time", {})]


def test_required_calls_need_an_engine_with_grammars(gateways: dict[str, RunningGateway]) -> None:
    with fake_triton() as plain:
        config = replace(gateways["hermes"].config, grpc=plain.address, port=0)
        with serve_gateway(config) as gateway:
            chat = Chat(gateway, plain)
            with pytest.raises(openai.BadRequestError, match="tool_choice is not supported") as caught:
                chat.create("a", tool_choice="required")
            assert caught.value.param == "tool_choice"
            assert called(chat.create(f"<tool_call>{TIME}").choices[0].message) == [("time", {})]


def test_special_tokens_that_mark_calls_are_read(fake: Fake, tmp_path: Path) -> None:
    """Decoding omits special tokens."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    document = json.loads((tokenizer / "tokenizer.json").read_text())
    special = {**document["added_tokens"][0], "id": len(document["model"]["vocab"]), "content": "[TOOL_CALLS]"}
    document["added_tokens"].append(special)
    (tokenizer / "tokenizer.json").write_text(json.dumps(document))
    (tokenizer / "chat_template.jinja").write_text(TEMPLATES["mistral"])
    config = GatewayConfig(fake.address, 0, "m", "tensorrt_llm", str(tokenizer), 9000, 4000)
    assert Tokenizer(tokenizer).decode(Tokenizer(tokenizer).encode("a[TOOL_CALLS]b")) == "ab"
    with serve_gateway(config) as gateway:
        answer = Chat(gateway, fake).create(f"Yes. [TOOL_CALLS][{TIME}]")
    assert answer.choices[0].message.content == "Yes."
    assert called(answer.choices[0].message) == [("time", {})]
