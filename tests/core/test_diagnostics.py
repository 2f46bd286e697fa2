# SPDX-License-Identifier: Apache-2.0
"""Rendering of diagnostics: text for users, keys for programs, no terminal control characters and no tokens."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trtspec.core.diagnostics import (
    MAX_DIAGNOSTICS,
    Diagnostic,
    Mark,
    RecipeError,
    first_invalid,
    render_diagnostic,
    simplify_pydantic_message,
    sort_diagnostics,
)
from trtspec.core.errors import TrtspecError

TOKEN = "hf_" + "aB3" * 12


def test_diagnostic_renders_position_line_message_and_hint() -> None:
    mark = Mark("recipes/llama3-8b-fp8.yaml", 14, 16, "    draft_len: 24")
    problem = Diagnostic(
        "speculation.draft_len",
        "out-of-range",
        "eagle3 takes 1..16 draft tokens.",
        "use 16, or method: ngram (1..64)",
    ).at(mark)
    assert render_diagnostic(problem) == (
        "recipes/llama3-8b-fp8.yaml:14:16  speculation.draft_len\n"
        "  14 │     draft_len: 24\n"
        "  eagle3 takes 1..16 draft tokens.\n  hint: use 16, or method: ngram (1..64)"
    )


def test_long_hint_has_a_separate_line_and_a_warning_has_a_label() -> None:
    problem = Diagnostic("engine", "memory", "m" * 80, "h" * 40, "warning").at(Mark("r.yaml"))
    assert render_diagnostic(problem) == f"r.yaml  engine\n  warning: {'m' * 80}\n  hint: {'h' * 40}"


def test_diagnostic_as_dict_has_the_documented_keys() -> None:
    problem = Diagnostic("a.b", "unknown-key", "unknown key 'b'").at(Mark("r.yaml", 1, 2, "x"))
    assert problem.as_dict() == {
        "severity": "error",
        "code": "unknown-key",
        "file": "r.yaml",
        "line": 1,
        "column": 2,
        "path": "a.b",
        "message": "unknown key 'b'",
        "hint": None,
    }


def test_recipe_error_renders_all_problems_with_exit_code_1() -> None:
    problems = [Diagnostic("", "c", f"wrong {name}").at(Mark(name)) for name in ("a", "b")]
    error = RecipeError(problems)
    assert isinstance(error, TrtspecError)
    assert (str(error), error.exit_code) == ("a\n  wrong a\n\nb\n  wrong b", 1)
    assert error.diagnostics == tuple(problems)


def test_long_source_line_is_cut_around_the_column() -> None:
    line = "x" * 500 + "HERE" + "y" * 500
    shown = render_diagnostic(Diagnostic("", "c", "m").at(Mark("r.yaml", 1, 501, line))).splitlines()[1]
    assert "HERE" in shown
    assert len(shown) < 140
    assert shown.startswith("  1 │ …x")
    assert shown.endswith("y…")


def test_control_characters_are_escaped() -> None:
    mark = Mark("r\x1b[31m.yaml", 1, 1, "a:\t\x9b31m\u202e\ud800")
    rendered = render_diagnostic(Diagnostic("p\r", "c", "m\x07", "h\nx").at(mark))
    assert rendered == "r\\x1b[31m.yaml:1:1  p\\r\n  1 │ a:    \\x9b31m\\u202e\\ud800\n  m\\x07\n  hint: h\\nx"


def test_tokens_are_redacted_in_every_text() -> None:
    problem = Diagnostic(TOKEN, "c", f"got '{TOKEN}'", f"write ./{TOKEN}").at(Mark(f"--set a={TOKEN}"))
    assert "aB3" not in repr(problem)
    assert problem.message == "got 'hf_***'"


def test_diagnostics_are_sorted_deduplicated_and_limited() -> None:
    def at(line: int, path: str, code: str = "c") -> Diagnostic:
        return Diagnostic(path, code, "m").at(Mark("r.yaml", line, 1))

    assert [p.path for p in sort_diagnostics([at(3, "z"), at(1, "b"), at(1, "a")])] == ["b", "a", "z"]
    assert [p.code for p in sort_diagnostics([at(1, "a", "first"), at(1, "a", "second")])] == ["first"]
    many = sort_diagnostics([at(line, "a") for line in range(1, 1000)])
    assert len(many) == MAX_DIAGNOSTICS + 1
    assert (many[-1].message, many[-1].line) == ("more problems follow", 101)


def test_diagnostics_module_imports_no_pydantic_yaml_or_rich() -> None:
    code = "import sys, trtspec.core.diagnostics; print({'pydantic', 'yaml', 'rich'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout == "set()\n"


@pytest.mark.slow
def test_loading_recipes_imports_no_heavy_modules() -> None:
    code = (
        "import sys, trtspec.recipe.load, trtspec.recipe.resolve;"
        "print({'torch', 'transformers', 'numpy', 'rich', 'tritonclient'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout == "set()\n"


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(ge=1, le=4)
    share: float = Field(0.5, gt=0, lt=1)
    names: list[str] = Field(default=["a"], min_length=1)
    on: bool = False
    kind: Literal["a", "b"] = "a"
    text: str = Field("x", pattern="[a-z]+", max_length=3)
    checked: int = 1

    @field_validator("checked")
    @classmethod
    def _check(cls, value: int) -> int:
        if value != 1:
            raise ValueError("checked is not 1")
        return value


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "is missing"),
        ({"count": "x"}, "expected a whole number"),
        ({"count": 0}, "must be at least 1"),
        ({"count": 9}, "must be at most 4"),
        ({"count": 1, "share": "x"}, "expected a number"),
        ({"count": 1, "share": 0}, "must be greater than 0"),
        ({"count": 1, "share": 1}, "must be less than 1"),
        ({"count": 1, "names": []}, "needs at least 1 item"),
        ({"count": 1, "names": {}}, "expected a list"),
        ({"count": 1, "on": "maybe"}, "expected a boolean"),
        ({"count": 1, "kind": "c"}, "expected 'a' or 'b'"),
        ({"count": 1, "text": "9"}, "does not have the expected form"),
        ({"count": 1, "text": "abcd"}, "needs at most 3 characters"),
        ({"count": 1, "checked": 2}, "checked is not 1"),
        ({"count": 1, "other": 2}, "unknown key"),
    ],
)
def test_pydantic_messages_are_simplified(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Form.model_validate(values)
    [found] = caught.value.errors()
    assert simplify_pydantic_message(found["msg"]) == first_invalid(caught.value).message == said


def test_first_invalid_value_of_a_document_has_a_short_printable_path() -> None:
    for key, path in (("\x1b[2J", "\\x1b[2J"), ("k" * 1000, "k" * 99 + "…")):
        with pytest.raises(ValidationError) as caught:
            _Form.model_validate({"count": 1, key: 2})
        assert first_invalid(caught.value) == (path, "unknown key")
        assert str(first_invalid(caught.value)) == f"{path}: unknown key"
