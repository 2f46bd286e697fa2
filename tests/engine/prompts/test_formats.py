# SPDX-License-Identifier: Apache-2.0
"""Every format, with records in the shape of the published sets and our own texts."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover
from trtspec.engine.prompts.formats.base import ATTRIBUTE, PACKAGE, detect_format
from trtspec.engine.prompts.load import read_prompts
from trtspec.engine.prompts.prompt import Prompt, read_records

SPEED_BENCH = {
    "question_id": "4f1c", "category": "coding", "sub_category": "python", "turns": ["Sort a list.", "Faster."],
    "source": "made-up/set", "src_id": "17", "difficulty": "mixed", "multiturn": True,
}  # fmt: skip
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write of rain.", "Shorter."], "reference": ["", ""]}
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": 'def add(a, b):\n    """Add."""\n', "entry_point": "add",
    "canonical_solution": "    return a + b\n", "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}  # fmt: skip
SHAREGPT = {
    "id": "QWJhYvA_0",
    "conversations": [
        {"from": "human", "value": "Hello"},
        {"from": "gpt", "value": "Hi"},
        {"from": "human", "value": "Bye"},
    ],
}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "Hi"}]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


# name: (the file, and for each prompt its id, kind, last words and further turns)
FILES: dict[str, tuple[str, list[tuple[str, str, str, int]]]] = {
    "own": (
        lines({"id": "a", "kind": "rag", "messages": CHAT}, {"prompt": "x"}),
        [("a", "rag", "Hello", 0), ("2", "", "x", 0)],
    ),
    "openai_chat": (
        lines({"messages": ANSWERED}, {"messages": [*ANSWERED, CHAT[1]]}, {"messages": CHAT, "category": "qa"}),
        [("1", "chat", "Hello", 0), ("2", "multi-turn", "Hello", 0), ("3", "question-answering", "Hello", 0)],
    ),
    "humaneval": (lines(HUMANEVAL), [("HumanEval/0", "code", '"""Add."""\n', 0)]),
    "gsm8k": (lines({"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"}), [("1", "math", "two?", 0)]),
    "mt_bench": (lines(MT_BENCH), [("81", "creative-writing", "Write of rain.", 1)]),
    "spec_bench": (
        lines(MT_BENCH, {"question_id": 161, "category": "translation", "turns": ["Translate: Regen"]}),
        [("81", "creative-writing", "Write of rain.", 1), ("161", "translation", "Regen", 0)],
    ),
    "speed_bench": (lines(SPEED_BENCH), [("4f1c", "code", "Sort a list.", 1)]),
    "sharegpt": (
        json.dumps([SHAREGPT, {"id": "b_1", "conversations": [{"from": "gpt", "value": "Hi"}]}], indent=2),
        [("QWJhYvA_0", "chat", "Hello", 1)],
    ),
    "plain_text": ("One, two\n\n Three \n", [("1", "", "One, two", 0), ("3", "", " Three ", 0)]),
}


def said(prompt: Prompt) -> str:
    return str(prompt.messages[-1]["content"]) if prompt.messages else prompt.text


@pytest.mark.parametrize("name", sorted(discover(PACKAGE, ATTRIBUTE)))
def test_published_file_is_parsed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(FILES[name][0])
    found = read_prompts(path)
    assert found.name == name
    shown = [(each.name, each.kind, said(each), each.further_turns) for each in found.prompts]
    expected = FILES[name][1]
    assert [each[:2] + each[3:] for each in shown] == [each[:2] + each[3:] for each in expected]
    assert all(text.endswith(words) for (_, _, text, _), (_, _, words, _) in zip(shown, expected, strict=True))


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_recognized_by_exactly_one_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(FILES[name][0])
    records = read_records(path)
    assert detect_format(records)[0] == name
    assert [each for each, found in discover(PACKAGE, ATTRIBUTE).items() if found.recognizes(records)] == [name]


def test_batch_requests_are_read_as_messages(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    request = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": CHAT}}
    path.write_text(lines(request))
    assert [(each.name, said(each)) for each in read_prompts(path).prompts] == [("r-1", "Hello")]


def test_records_without_a_question_are_counted_as_left_out(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(FILES["sharegpt"][0])
    assert read_prompts(path).left_out == 1
    path.write_text(json.dumps([{"conversations": []}]))
    with pytest.raises(TrtspecError, match="none of 1 records has a question"):
        read_prompts(path)


WRONG = [
    (lines(MT_BENCH, MT_BENCH | {"turns": []}), ':2: expected {"turns": ["some text", ...]}'),
    (lines(MT_BENCH, MT_BENCH | {"turns": ["a", 3]}), ':2: expected {"turns": ["some text", ...]}'),
    (
        lines(SPEED_BENCH, SPEED_BENCH | {"turns": [PLACEHOLDER]}),
        ":2: prompt 4f1c has a placeholder instead of its text",
    ),
    (lines(HUMANEVAL, {"task_id": "x"}), ':2: expected {"prompt": "some text"}'),
    (lines({"question": 3, "answer": "4"}), ':1: expected {"question": "some text"}'),
    (lines({"messages": [{"role": "wizard", "content": "a"}]}), ":1: messages.0.role must be one of system, developer"),
    (lines({"messages": CHAT}, {"prompt": "a"}), ":2: messages must be a list of 1 to 4096 messages"),
    (lines({"messages": ANSWERED[2:]}), ":1: all messages are answers; expected a user message"),
    (lines({"messages": [{"role": "tool", "content": "a"}]}), ":1: a message about tools is not supported"),
    (json.dumps([SHAREGPT, {"id": 3}], indent=1), ':19: record 2: expected {"conversations": [{"from": "human"'),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_invalid_record_is_rejected_with_its_position(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(content)
    with pytest.raises(TrtspecError) as caught:
        read_prompts(path)
    assert str(caught.value).removeprefix(str(path)).startswith(message)


def test_parquet_is_read_with_pyarrow_and_invalid_files_are_rejected(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'trtspec[prompts]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "test-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([SPEED_BENCH, SPEED_BENCH | {"turns": [PLACEHOLDER]}]), path)
    with pytest.raises(TrtspecError, match=r"parquet: row 2: prompt 4f1c has a placeholder"):
        read_prompts(path)
    parquet.write_table(pyarrow.Table.from_pylist([SPEED_BENCH]), path)
    found = read_prompts(path)
    assert (found.name, [said(each) for each in found.prompts]) == ("speed_bench", ["Sort a list."])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TrtspecError, match="not a valid parquet file"):
        read_prompts(path)


def test_parquet_size_is_checked_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'trtspec[prompts]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "large.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a" * 50_000] * 3}), path, use_dictionary=False, compression="gzip")
    monkeypatch.setattr("trtspec.engine.prompts.prompt.MAX_BYTES", 100_000)
    with pytest.raises(TrtspecError, match="the rows up to row 1 unpack to more than 100,000 bytes"):
        read_prompts(path)


def test_parquet_without_pyarrow_is_an_error_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(TrtspecError) as caught:
        read_prompts(path)
    assert str(caught.value) == (
        f"{path}: reading parquet files needs pyarrow, which is not installed\n"
        "hint: pip install 'trtspec[prompts]', or save the file as JSON lines"
    )


SYSTEM = {"from": "system", "value": "Answer only with JSON."}
ASKS = {"from": "human", "value": "List two colours."}


@pytest.mark.parametrize(
    ("record", "roles"),
    [
        ({"conversations": [SYSTEM, ASKS, {"from": "gpt", "value": "[]"}]}, ["system", "user"]),
        ({"conversations": [ASKS], "system": "Be brief."}, ["system", "user"]),
        ({"conversations": [SYSTEM, ASKS], "system": "Another."}, ["system", "user"]),
        ({"conversations": [ASKS, SYSTEM]}, ["user"]),
        ({"conversations": [{"from": "gpt", "value": "Hi"}, ASKS]}, ["user"]),
        ({"conversations": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}, ["system", "user"]),
        ({"conversations": [{"from": "system", "value": ""}, ASKS], "tools": "[]"}, ["user"]),
    ],
)
def test_sharegpt_leading_system_turns_are_part_of_the_prompt(record: Any, roles: list[str], tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(lines(record))
    found = read_prompts(path)
    assert [message["role"] for message in found.prompts[0].messages] == roles
    assert found.left_out == 0


def test_sharegpt_records_with_tools_or_without_user_turn_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        lines({"conversations": [ASKS]}, {"conversations": [SYSTEM]}, {"conversations": [ASKS], "tools": "[1]"})
    )
    assert (len(read_prompts(path).prompts), read_prompts(path).left_out) == (1, 2)


def test_invalid_record_in_a_single_line_file_is_reported_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"conversations": [ASKS]}] * 5 + [{"id": "b"}]))
    with pytest.raises(TrtspecError, match=r'p.json:1: record 6: expected {"conversations"'):
        read_prompts(path)


def bombs(folder: Path) -> dict[str, Path]:
    """Write parquet files that unpack to far more than their size."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'trtspec[prompts]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    large = pyarrow.array(["x" * 600_000])
    indices = pyarrow.array([0] * 20_000, pyarrow.int32())
    nulls = pyarrow.nulls(90_000, pyarrow.string())
    many = pyarrow.array([["x"] * 3_000_000] * 2, pyarrow.list_(pyarrow.string()))
    tables = {
        "one large text": {"prompt": pyarrow.DictionaryArray.from_arrays(indices, large)},
        "columns of nulls": {"prompt": pyarrow.array(["a"] * 90_000)} | {f"c{number}": nulls for number in range(300)},
        "lists": {"question_id": [1, 2], "category": ["a", "b"], "turns": many},
        "unknown columns": {f"c{number}": nulls for number in range(40)},
    }
    found = {}
    for name, columns in tables.items():
        found[name] = folder / f"{name}.parquet"
        parquet.write_table(pyarrow.table(columns), found[name], compression="zstd")
        assert found[name].stat().st_size < 4_000_000
    return found


@pytest.mark.slow
def test_parquet_files_that_unpack_to_gigabytes_are_rejected(tmp_path: Path) -> None:
    files = bombs(tmp_path)
    for name, words in (
        ("one large text", "unpack to more than|needed more than|cannot read the file"),
        ("lists", "unpack to more than"),
        ("unknown columns", "an object with 'c0', 'c1'"),
    ):
        with pytest.raises(TrtspecError, match=words):
            read_prompts(files[name])
    assert len(read_prompts(files["columns of nulls"]).prompts) == 90_000  # they are not read


@pytest.mark.slow
def test_damaged_parquet_files_raise_no_other_error_than_trtspec_error(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'trtspec[prompts]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, draws = tmp_path / "p.parquet", random.Random(0)
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "a" * 50, "id": 3}] * 40), path)
    whole, seen = path.read_bytes(), 0
    for _ in range(int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "12"))):
        damaged = bytearray(whole)
        for _ in range(draws.choice((1, 3, 30))):
            damaged[draws.randrange(4, len(whole))] = draws.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            read_prompts(path)
        except TrtspecError:
            seen += 1
    assert seen
