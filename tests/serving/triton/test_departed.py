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
def test_client_token_is_added_to_a_json_object_body(body: bytes) -> None:
    token, more = add_client_token(body)
    assert json.loads(more) == {CLIENT_PARAMETER: token, **json.loads(body)}
    assert add_client_token(body)[0] != token


@pytest.mark.parametrize("body", [b"", b"[]", b"a", b'"{"', b"\xef\xbb\xbf{}"])
def test_body_that_is_not_an_object_is_unchanged(body: bytes) -> None:
    assert add_client_token(body)[1] == body


def test_disconnect_lookup_accepts_only_valid_tokens(tmp_path: Path) -> None:
    token, _ = add_client_token(b"{}")
    assert not has_disconnected(str(tmp_path), token)
    mark_disconnected(tmp_path, token)
    mark_disconnected(tmp_path, token)
    assert has_disconnected(str(tmp_path), token)
    assert not has_disconnected("", token)
    (tmp_path / "a").touch()
    for other in ("a", "", None, 7, f"./{token}", token + "\n", token.upper() + "x"):
        assert not has_disconnected(str(tmp_path), other)
