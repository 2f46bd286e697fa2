# SPDX-License-Identifier: Apache-2.0
"""Recipe files in a separate current directory, because messages name files as the user did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trtspec.core.diagnostics import RecipeError
from trtspec.recipe.load import load_matrix

HEAD = "schema: trtspec.recipe/1\nname: tiny\ntarget: {model: ./t}\n"

Write = Callable[..., Path]
Fail = Callable[..., RecipeError]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a recipe file, by default after the three required lines, and return its relative path."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str | bytes, name: str = "r.yaml", head: str = HEAD) -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else (head + text).encode())
        return path

    return write_file


@pytest.fixture
def fail(write: Write) -> Fail:
    """Load an invalid recipe and return its error."""

    def load_bad(text: str | bytes, overrides: Sequence[str] = (), head: str = HEAD) -> RecipeError:
        with pytest.raises(RecipeError) as caught:
            load_matrix(write(text, head=head), overrides)
        return caught.value

    return load_bad
