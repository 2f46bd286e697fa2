# SPDX-License-Identifier: Apache-2.0
"""`trtspec datasets`: the summary of a prompt file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Run
from trtspec.engine.prompts.load import shipped_sets

RECORDS = [
    {"question_id": 1, "category": "qa", "turns": ["Who?", "Why?"]},
    {"question_id": 2, "category": "rag", "turns": ["Where?"]},
    {"question_id": 3, "category": "qa", "turns": ["Whence?"]},
]


def question(workplace: Path) -> Path:
    path = workplace / "question.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def test_file_is_summarized_by_kind(workplace: Path, trtspec: Run) -> None:
    question(workplace)
    shown = trtspec("datasets", "question.jsonl")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        "question.jsonl: Spec-Bench",
        "kind                prompts    characters",
        "question-answering        2  22 / 24 / 25",
        "rag                       1  24 / 24 / 24",
        "all                       3  22 / 24 / 25",
        "3 prompts, lengths as minimum / median / maximum; 3 rendered with a chat template; 1 later turn ignored",
    ]


def test_json_document_has_token_lengths_with_a_tokenizer(recipe: Path, trtspec: Run) -> None:
    question(recipe.parent)
    (recipe.parent / "target" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    document = trtspec("datasets", "question.jsonl", "--tokenizer", "target", "--json").document
    assert (document["format"], document["prompts"], document["further_turns"]) == ("spec_bench", 3, 1)
    assert document["characters"] == {"min": 4, "median": 6, "max": 7, "total": 17}
    assert document["tokens"]["total"] == sum(kind["tokens"]["total"] for kind in document["kinds"]) > 0
    assert [(kind["kind"], kind["prompts"]) for kind in document["kinds"]] == [("question-answering", 2), ("rag", 1)]
    assert trtspec("datasets", "question.jsonl", "--json").document["tokens"] is None
    assert "tokens" in trtspec("datasets", "question.jsonl", "--tokenizer", "target").out


def test_shipped_sets_are_listed_and_can_be_selected_by_name(workplace: Path, trtspec: Run) -> None:
    shown = trtspec("datasets", "--list")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["name", *shipped_sets()]
    document = trtspec("datasets", "--list", "--json").document
    assert [each["name"] for each in document["sets"]] == [*shipped_sets()]
    assert trtspec("datasets", "default", "--json").document["prompts"] == 12


def test_invalid_usage_is_an_error_with_a_fix(workplace: Path, trtspec: Run) -> None:
    for arguments in ((), ("some", "--list")):
        assert trtspec("datasets", *arguments).err == "error: datasets requires either FILE or --list\n"
    done = trtspec("datasets", "nosuch.jsonl", "--json")
    assert done.code == 1
    assert json.loads(done.out)["error"]["hint"].startswith("check the path")
    (workplace / "p").write_text("a")
    assert trtspec("datasets", "p", "--tokenizer", "nowhere").err.startswith("error: nowhere: no tokenizer.json")
