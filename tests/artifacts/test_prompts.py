# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.artifacts import prompts as prompts_module
from trtspec.artifacts.prompts import Prompt, load_prompts
from trtspec.errors import TrtspecError
from trtspec.measure.artifact import artifact_prompts
from trtspec.paths import default_prompts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_prompts_are_read_in_order(path: Path) -> None:
    lines = ['{"prompt": "one\\u2028line", "id": "a", "kind": "log"}', "", '{"prompt": " 北京 ", "other": 1}', ""]
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert load_prompts(path) == [Prompt("one\u2028line", "a", "log"), Prompt(" 北京 ", "3", "")]


def test_a_separator_inside_a_prompt_ends_no_line(path: Path) -> None:
    path.write_text(json.dumps({"prompt": "a\u2028b\x0bc\u0085d"}, ensure_ascii=False), encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(path)] == ["a\u2028b\x0bc\u0085d"]


REFUSED = [
    (b"", "0 prompts, expected 1 to 100,000"),
    (b"\n\n", "0 prompts, expected 1 to 100,000"),
    (b'{"prompt": "\xff"}', "not UTF-8"),
    (b'{"prompt": "a"}\n{"prompt": "b"', ':2: expected {"prompt": "some text"}'),
    (b"[" * 100_000, ':1: expected {"prompt": "some text"}'),
    (b'{"prompt": null}', ':1: expected {"prompt": "some text"}'),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_what_are_no_prompts(content: bytes, message: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(TrtspecError) as refused:
        load_prompts(path)
    said = str(refused.value).partition("\nhint: a prompt file has")[0]
    assert said.removeprefix(str(path)).removeprefix(": ") == message


def test_too_many_and_too_large(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('{"prompt": "a"}\n' * 3)
    monkeypatch.setattr(prompts_module, "MAX_PROMPTS", 2)
    with pytest.raises(TrtspecError, match="3 prompts, expected 1 to 2"):
        load_prompts(path)
    monkeypatch.setattr(prompts_module, "MAX_BYTES", 40)
    with pytest.raises(TrtspecError, match="larger than 40 bytes"):
        load_prompts(path)


def test_which_prompts_are_measured_on(tmp_path: Path, path: Path) -> None:
    path.write_text('{"prompt": "given"}')
    assert artifact_prompts(None, None) == artifact_prompts(tmp_path, None) == load_prompts(default_prompts())
    own = tmp_path / "prompts" / "own.jsonl"
    own.parent.mkdir()
    own.write_text('{"prompt": "own"}')
    assert [prompt.text for prompt in artifact_prompts(tmp_path, None)] == ["own"]
    assert [prompt.text for prompt in artifact_prompts(tmp_path, path)] == ["given"]
