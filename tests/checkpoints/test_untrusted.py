# SPDX-License-Identifier: Apache-2.0
"""Untrusted files that are accepted; rejected ones are in corpus.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtspec.checkpoints.safe_json import MAX_DEPTH, parse_object, repr_short

NESTED = '{"a":' * (MAX_DEPTH - 1) + "1" + "}" * (MAX_DEPTH - 1)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        ' {"a": [1, -2, 1e-06, 3.5e38, true, null, "x"], "b": {"c": {}}}\n',
        '{"ü": "\\u00fc\\ud83d\\ude42"}',
        NESTED,
    ],
)
def test_valid_json_is_parsed_as_by_the_library(text: str) -> None:
    assert parse_object(text.encode(), 100) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"a": {NESTED}}}', "JSON nested more than 32 deep"),
        ('{"a": [1, 2]}', "JSON of 3 values; at most 2 are parsed"),
        ('{"a": 1' + "0" * 40 + "}", "not valid JSON: it has a number of 41 digits"),
        ('{"a": 0.' + "1" * 40 + "}", "not valid JSON: the number '0.1111"),
        ('{"a": 1, "b": 2, "b": 3}', "not valid JSON: duplicate key 'b'"),
        ('{"a": "\\q"}', "not valid JSON: Invalid \\\\escape: line 1 column 8"),
        ("3", "not a JSON object"),
    ],
)
def test_invalid_or_excessive_json_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        parse_object(text.encode(), 2 if "at most 2" in message else 100)


def test_negative_zero_is_parsed_as_a_float() -> None:
    value: Any = parse_object(b'{"a": -0}', 10)["a"]
    assert isinstance(value, float)


def test_repr_short_escapes_and_truncates_text() -> None:
    assert repr_short("a\nb") == r"'a\nb'"
    assert repr_short("x" * 201) == f"'{'x' * 200}...'"
