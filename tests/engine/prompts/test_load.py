# SPDX-License-Identifier: Apache-2.0
"""Prompt files of all formats: encodings, limits, errors, and the text that is sent to a model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.bench.artifact import artifact_prompts
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import default_prompts
from trtspec.engine.prompts import prompt as records
from trtspec.engine.prompts.load import load_prompts, read_prompts, shipped_sets
from trtspec.engine.prompts.prompt import KINDS, MULTI_TURN, Prompt

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def refused(path: Path) -> str:
    with pytest.raises(TrtspecError) as caught:
        load_prompts(path)
    return str(caught.value).partition("\nhint: ")[0].removeprefix(str(path)).removeprefix(": ")


def test_prompts_are_read_in_order(path: Path) -> None:
    lines = ['{"prompt": "one\\u2028line", "id": "a", "kind": "log"}', "", '{"prompt": " 北京 ", "other": 1}', ""]
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert load_prompts(path) == [Prompt("one\u2028line", "a", "log"), Prompt(" 北京 ", "3", "")]


def test_unicode_line_separator_in_a_prompt_does_not_end_the_line(path: Path) -> None:
    path.write_text(json.dumps({"prompt": "a\u2028b\x0bc\u0085d"}, ensure_ascii=False), encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(path)] == ["a\u2028b\x0bc\u0085d"]


@pytest.mark.parametrize("before", ["", "\ufeff", "\n \n"])
def test_file_format_is_detected_from_content_and_not_from_the_name(before: str, tmp_path: Path) -> None:
    path = tmp_path / "some.data"
    path.write_text(before + '{"prompt": "a"}\n')
    assert [prompt.text for prompt in load_prompts(path)] == ["a"]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert [prompt.text for prompt in load_prompts(path)] == ["a"]


REFUSED = [
    (b"", "0 prompts, expected 1 to 100,000"),
    (b"\n\n", "0 prompts, expected 1 to 100,000"),
    (b"[ ]", "0 prompts, expected 1 to 100,000"),
    (b'{"prompt": "\xff"}', "not UTF-8"),
    (b'{"prompt": "a"}\n{"prompt": "b"', ":2: not valid JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"),
    (b"[" * 100_000, ":1: record 1: JSON nested too deeply"),
    (b'[{"prompt": "a"},\n\n {"prompt": ' + b"[" * 99 + b"]" * 99 + b"}]", ":3: record 2: JSON nested too deeply"),
    (b'{"prompt": ' + b"[" * 99 + b"]" * 99 + b"}", ":1: JSON nested more than 32 deep"),
    (b'{"prompt": null}', ':1: expected {"prompt": "some text"}'),
    (b'{"prompt": "a"}\n\n{"text": "b"}', ':3: expected {"prompt": "some text"}'),
    (b'{"prompt": "a"}\n"b"', ":2: not a JSON object"),
    (b'[{"prompt": "a"},\n{"prompt": ""}]', ':2: record 2: expected {"prompt": "some text"}'),
    (
        b'[{"prompt": "a"}\n{"prompt": "b"}]',
        ":1: record 1: not valid JSON: missing comma or end of the list",
    ),
    (b'[{"prompt": "a"},\n', ":2: record 2: not valid JSON: Expecting value"),
    (b'["a",\n3]', ":2: record 2: expected a non-empty text, as in the first record"),
    (b"[INST] a", ":1: record 1: not valid JSON: Expecting value"),
    (b"a\nb\x00", ":2: neither JSON nor text: it has control characters"),
    (b"\x1f\x8bnothing", "not a complete gzip file"),
    (gzip.compress(b'{"prompt": "a"}', mtime=0)[:-9], "not a complete gzip file"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_invalid_prompt_file_is_rejected_with_the_reason(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    assert refused(path) == message


def test_unknown_format_is_rejected_with_its_keys_and_the_supported_formats(path: Path) -> None:
    path.write_text('\n{"text": "a", "label": 3}')
    said = refused(path)
    assert said.startswith(":2: an object with 'text', 'label'; expected prompts in one of: GSM8K, HumanEval, MT-bench")
    path.write_text("[3]")
    assert refused(path).startswith(":1: record 1: unknown prompt format; expected prompts in one of: ")


def test_prompt_file_beyond_a_limit_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('{"prompt": "a"}\n' * 3)
    monkeypatch.setattr(records, "MAX_NESTED", 2)
    assert refused(path) == "more than 2 lists and objects"
    monkeypatch.setattr(records, "MAX_NESTED", 9)
    monkeypatch.setattr(records, "MAX_PROMPTS", 2)
    assert refused(path) == "3 prompts, expected 1 to 2"
    path.write_text('[{"prompt": "a"}, {"prompt": "a"}, {"prompt": "a"}]')
    assert refused(path) == "3 prompts, expected 1 to 2"
    monkeypatch.setattr(records, "MAX_BYTES", 40)
    assert refused(path) == "larger than 40 bytes"
    path.write_bytes(gzip.compress(b"a" * 1000))
    assert refused(path) == "unpacks to more than 40 bytes"


def test_artifact_prompts_are_the_given_file_or_the_artifacts_or_the_default(tmp_path: Path, path: Path) -> None:
    path.write_text('{"prompt": "given"}')
    assert artifact_prompts(None, None) == artifact_prompts(tmp_path, None) == load_prompts(default_prompts())
    own = tmp_path / "prompts" / "own.txt"
    own.parent.mkdir()
    own.write_text("own")
    assert [prompt.text for prompt in artifact_prompts(tmp_path, None)] == ["own"]
    assert [prompt.text for prompt in artifact_prompts(tmp_path, path)] == ["given"]


def test_shipped_set_is_selected_by_name_unless_such_a_file_exists(workplace: Path) -> None:
    assert read_prompts(Path("default")).path == shipped_sets()["default"] == default_prompts()
    Path("default").write_text("a file of that name")
    assert [prompt.text for prompt in load_prompts(Path("default"))] == ["a file of that name"]


def chats(path: Path) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in ({"messages": MESSAGES, "kind": "x"}, {"prompt": "a"})))
    return path


def test_messages_without_a_template_are_rendered_as_plain_text(path: Path, pair_master: Path) -> None:
    plain = "System: Be brief.\n\nUser: Hello\n\nAssistant:"
    assert [prompt.text for prompt in load_prompts(chats(path))] == [plain, "a"]
    assert [prompt.text for prompt in load_prompts(path, pair_master / "target")] == [plain, "a"]


@pytest.mark.slow
def test_messages_are_rendered_with_the_tokenizers_template(path: Path, artifact: Path) -> None:
    (artifact / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    given = artifact_prompts(artifact, chats(path))
    assert [prompt.text for prompt in given] == ["<system>Be brief.<user>Hello<assistant>", "a"]
    (artifact / "tokenizer" / "chat_template.jinja").write_text("{{ raise_exception('no system') }}")
    with pytest.raises(TrtspecError, match="prompt 1: the chat template rejects these messages: no system"):
        artifact_prompts(artifact, path)


def test_begin_token_of_the_template_is_not_duplicated(path: Path, pair_master: Path, tmp_path: Path) -> None:
    from trtspec.checkpoints.tokenizer import Tokenizer

    document = json.loads((pair_master / "target" / "tokenizer.json").read_text())
    begin = next(iter(document["model"]["vocab"]))
    token, text = {"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text],
        "special_tokens": {begin: {"id": begin, "ids": [document["model"]["vocab"][begin]], "tokens": [begin]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": begin}))
    tokenizer, number = Tokenizer(tmp_path), document["model"]["vocab"][begin]
    assert tokenizer.adds == (number,)
    for template, begins in (("{{ bos_token }}" + TEMPLATE, True), (TEMPLATE, False)):
        (tmp_path / "chat_template.jinja").write_text(template)
        chat, plain = (tokenizer.encode(prompt.text) for prompt in load_prompts(chats(path), tmp_path))
        assert (chat.count(number), chat[0] == number) == (int(begins), begins)
        assert plain[0] == number  # a prompt without messages stays as it is


def test_missing_jinja2_is_an_error_with_its_name(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.engine.prompts.chat.find_spec", lambda name: None)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    with pytest.raises(TrtspecError, match="chat templates need jinja2, which is not installed"):
        load_prompts(chats(path), tmp_path)


@pytest.mark.slow
def test_generate_and_verify_accept_a_prompt_file_of_messages(recipe: Path, trtspec: Run) -> None:
    (recipe.parent / "target" / "chat_template.jinja").write_text(TEMPLATE.replace("<", "").replace(">", " "))
    chats(recipe.parent / "chats")
    assert trtspec("build", recipe, "--set", "gates.prompts=chats").code == 0
    results = trtspec("generate", "build/tiny", "--prompts", "chats", "--max-tokens", 4).document["results"]
    expected = load_prompts(Path("chats"), Path("build/tiny/tokenizer"))
    assert expected[0].text == "system Be brief.user Helloassistant "
    assert [each["id"] for each in results] == [prompt.name for prompt in expected]
    done = trtspec("verify", "build/tiny", "--max-tokens", 4, "--json")
    assert {check["name"]: check["limit"] for check in done.document["checks"]}["parity"] == 2


def test_shipped_kinds_set_has_20_prompts_of_each_kind(workplace: Path) -> None:
    prompts = read_prompts(Path("kinds")).prompts
    assert [(prompt.kind, prompt.name) for prompt in prompts] == [
        (kind, f"{kind}-{number:02}") for kind in KINDS for number in range(1, 21)
    ]
    asked = [str(prompt.messages[-1]["content"]) if prompt.messages else prompt.text for prompt in prompts]
    assert len({text[:40] for text in asked}) > 210
    assert sum(not prompt.messages for prompt in prompts) == 6
    assert shipped_sets()["kinds"].stat().st_size < 400_000
    chats = [prompt.messages for prompt in prompts if prompt.kind == MULTI_TURN]
    assert all(sum(each["role"] == "user" for each in messages) > 1 for messages in chats)
    passages = [text.partition("\n")[2] for text in asked if "summarization" in prompts[asked.index(text)].name]
    assert all(150 <= len(text.split()) <= 400 or len(text) < 600 for text in passages)
