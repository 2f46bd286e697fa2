# SPDX-License-Identifier: Apache-2.0
"""The token that the proxy adds to `generate` requests, and its records of disconnected clients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.serving.triton.python_models.interruptions import (
    CLIENT_PARAMETER,
    add_client_token,
    has_disconnected,
    mark_disconnected,
)


@pytest.mark.parametrize("body", [b"{}", b" \r\n{ }", b'{"a":1}', b'\t{ "a": {"b": [1, "}"]}, "c": "\xc3\xa9"}'])
def test_a_body_gets_a_token_and_keeps_the_rest(body: bytes) -> None:
    token, more = add_client_token(body)
    assert json.loads(more) == {CLIENT_PARAMETER: token, **json.loads(body)}
    assert add_client_token(body)[0] != token


@pytest.mark.parametrize("body", [b"", b"[]", b"a", b'"{"', b"\xef\xbb\xbf{}"])
def test_a_body_that_is_no_object_stays(body: bytes) -> None:
    assert add_client_token(body)[1] == body


def test_only_tokens_are_looked_for(tmp_path: Path) -> None:
    token, _ = add_client_token(b"{}")
    assert not has_disconnected(str(tmp_path), token)
    mark_disconnected(tmp_path, token)
    mark_disconnected(tmp_path, token)
    assert has_disconnected(str(tmp_path), token)
    assert not has_disconnected("", token)
    (tmp_path / "a").touch()
    for other in ("a", "", None, 7, f"./{token}", token + "\n", token.upper() + "x"):
        assert not has_disconnected(str(tmp_path), other)
