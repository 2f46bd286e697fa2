# SPDX-License-Identifier: Apache-2.0
"""Parsing of recipe YAML: YAML 1.2 scalars, rejected constructs, limits, and source locations."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.core.diagnostics import Diagnostic, RecipeError
from trtspec.recipe.yaml_tree import (
    MAX_DEPTH,
    MAX_NODES,
    RecipeNode,
    RecipeText,
    locate,
    parse_document,
    plain,
    resolve_scalar,
)

SCALARS = [
    *[("true", True), ("True", True), ("FALSE", False), ("", None), ("~", None), ("null", None)],
    *[(word, word) for word in ("yes", "no", "on", "off", "y", "tRUE", "1:30", "2026-01-02", "1_000", "0b1", "-", "=")],
    *[("014", 14), ("-7", -7), ("+7", 7), ("0x1F", 31), ("0o17", 15), ("0", 0)],
    *[("1e3", 1000.0), ("1.", 1.0), (".5", 0.5), ("-1.5E-2", -0.015), ("1e", "1e"), (".", "."), ("1.2.3", "1.2.3")],
]


def parse(text: str) -> tuple[Any, list[Diagnostic]]:
    problems: list[Diagnostic] = []
    return plain(tree_of(text, problems)), problems


def tree_of(text: str, problems: list[Diagnostic]) -> RecipeNode:
    return parse_document(text, RecipeText.of("r.yaml", Path("/base"), text), problems)


def refused(text: str) -> Diagnostic:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    (problem,) = caught.value.diagnostics
    return problem


def reported(text: str) -> tuple[Any, Diagnostic]:
    value, (problem,) = parse(text)
    return value, problem


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    got = resolve_scalar(text)
    assert (type(got), got) == (type(value), value)


@given(st.one_of(st.booleans(), st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.floats(-1e18, 1e18)))
def test_json_scalars_are_parsed_unchanged(value: object) -> None:
    assert parse(json.dumps(value)) == (value, [])


def test_quoted_scalars_are_strings() -> None:
    assert parse("""["1", 'true', "", ~]""") == (["1", "true", "", None], [])


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1e999", "9223372036854775808", "9" * 9000])
def test_nonfinite_and_oversized_numbers_are_rejected(text: str) -> None:
    _, problem = reported(f"a: {text}")
    assert problem.message == "a number in a recipe must be finite and fit in 64 bits"
    assert (problem.path, problem.line, problem.column) == ("a", 1, 4)


@pytest.mark.parametrize(
    ("text", "kept", "said"),
    [
        ("a: 1\nb: 2\na: 3", {"a": 1, "b": 2}, "a 3:1: duplicate key, in lines 1 and 3"),
        ("a: {x: 1, x: 2}", {"a": {"x": 1}}, "a.x 1:11: duplicate key, in lines 1 and 1"),
        ("1: x\nb: 2", {"b": 2}, "1 1:1: a key must be a string"),
        ("? [a]\n: x", {}, " 1:3: a key must be a string"),
        ("<<: {a: 1}", {}, "<< 1:1: merge keys (<<) are not supported"),
        ("a: !!python/name:os.system x", {"a": "x"}, "a 1:4: tags (tag:yaml.org,2002:python/name:os.system) are"),
        ("a: !!int 3", {"a": 3}, "a 1:4: tags (tag:yaml.org,2002:int) are not supported"),
        ('a: ["\\e[31m"]', {"a": ["\x1b[31m"]}, "a.0 1:5: control characters are not allowed in a recipe"),
        ('a: "\\ud800"', {"a": "\ud800"}, "a 1:4: control characters are not allowed in a recipe"),
        (f"a: 'x hf_{'a1' * 15}'", None, "a 1:4: this looks like a token; a recipe must not contain secrets"),
        (f"a: nvapi-{'a-' * 15}", None, "a 1:4: this looks like a token; a recipe must not contain secrets"),
    ],
)
def test_unsupported_constructs_are_reported_and_parsing_continues(text: str, kept: object, said: str) -> None:
    value, problem = reported(text)
    assert f"{problem.path} {problem.line}:{problem.column}: {problem.message}".startswith(said)
    assert kept is None or value == kept


def test_folder_names_are_not_reported_as_tokens() -> None:
    assert parse("a: [./hf_checkpoints, nvapi-notes, shf_aaaaaaaaaaaaaaaaaaaaaaaaa]")[1] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x", "2:4: aliases (*x) are not supported"),
        ("a: 1\n---\nb: 2", "2:1: a second document starts here"),
        ("a: [1, 2", "1:4: not valid YAML: the `[` here is not closed"),
        ("a: b: c", "1:5: not valid YAML: mapping values are not allowed here"),
        (
            "a:\n\t- b",
            "2:1: not valid YAML: while scanning for the next token, found character '\\t' that cannot start",
        ),
        ("a: b\n c: d\x00", "2:6: the character U+0000 is not allowed in YAML"),
        ("a:\r\n  - '\x07'", "2:6: the character U+0007 is not allowed in YAML"),
        ('a: "\\U00110000"', "1:2: not valid YAML: a bad escape or directive after this place (chr() arg not in"),
        ("%YAML " + "1" * 5000 + ".1\n--- a", "1:1: not valid YAML: "),
        ("a: *", "1:5: not valid YAML: while scanning an alias, expected alphabetic or numeric character"),
    ],
)
def test_fatal_syntax_errors_are_reported_with_their_position(text: str, said: str) -> None:
    problem = refused(text)
    assert f"{problem.line}:{problem.column}: {problem.message}".startswith(said)


def test_common_syntax_errors_have_hints() -> None:
    assert refused("a: b: c").hint == "quote a value that contains `: `"
    assert refused("a:\n\t- b").hint == "indent with spaces, not tabs"


def test_nesting_deeper_than_the_maximum_is_rejected() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert parse(nested(MAX_DEPTH))[1] == []
    problem = refused(nested(MAX_DEPTH + 1))
    assert (problem.message, problem.column) == ("nested deeper than 32 levels", 33)


@pytest.mark.slow
def test_more_values_than_the_maximum_are_rejected() -> None:
    def counted(nodes: int) -> str:
        return f"[{'1,' * (nodes - 1)}]"

    assert len(parse(counted(MAX_NODES))[0]) == MAX_NODES - 1
    assert refused(counted(MAX_NODES + 1)).message == "more than 20,000 values"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "? " * 100_000])
def test_100_000_levels_are_rejected_within_a_second(text: str) -> None:
    start = time.process_time()
    assert refused(text).code == "too-deep"
    assert time.process_time() - start < 1


def test_alias_bomb_is_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    problem = refused("\n".join(lines))
    assert (problem.code, problem.line) == ("alias", 2)
    assert problem.hint == "repeat the value; `extends` shares keys between recipes"


def test_marks_give_line_and_column_of_keys_and_values() -> None:
    tree = tree_of("a:\n  b: [x, yy]\n", [])
    node, _ = locate(tree, ("a", "b", "1"))
    assert (node.mark.line, node.mark.column, node.mark.text) == (2, 10, "  b: [x, yy]")
    node, written = locate(tree, ("a", "b", "7"))
    assert (written, node.key_mark.line, node.key_mark.column, node.mark.column) == (False, 2, 3, 6)


def test_unusual_line_breaks_are_counted_as_in_yaml() -> None:
    tree = tree_of("a: 1\rb: 2\r\nc: 3\u2028d: 4", [])
    assert [tree.value[key].mark.line for key in "abcd"] == [1, 2, 3, 4]
    assert tree.value["d"].mark.text == "d: 4"


@settings(deadline=2000)
@given(st.text(st.sampled_from("ab:-?[]{},&*!|>'\"%@`#<\n\t \\0x~=.e1"), max_size=60))
def test_random_text_gives_a_tree_or_a_recipe_error(text: str) -> None:
    with contextlib.suppress(RecipeError):
        parse(text)
