# SPDX-License-Identifier: Apache-2.0
"""The compilation cache compiles equal sources once; the compiler is a script that counts its runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests._support import compiled
from tests._support.compiled import compile_once, run_build

COMPILER = """\
#!/bin/sh
[ "$1" = --version ] && exec echo 1.0
grep -q wrong main.cpp && { echo "main.cpp:1: error" >&2; exit 1; }
echo x >> {count}
cat main.cpp > program
"""

Compile = Callable[..., str]


@pytest.fixture
def count(tmp_path: Path) -> Path:
    """The compiler's runs, one line each."""
    (tmp_path / "count").touch()
    return tmp_path / "count"


@pytest.fixture
def compile_text(tmp_path: Path, count: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compile a text in a named folder, and return the output."""
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(compiled, "FOLDERS", (tmp_path / "sources",))
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER.replace("{count}", str(count)))
    compiler.chmod(0o755)

    def run(text: str, folder: str, *flags: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.cpp").write_text(text)
        compile_once([str(compiler), *flags, "-o", str(tmp_path / folder / "program")], tmp_path / folder)
        return (tmp_path / folder / "program").read_text()

    return run


def test_equal_sources_and_commands_are_compiled_once(compile_text: Compile, count: Path) -> None:
    assert compile_text("text", "one") == compile_text("text", "other") == "text"
    assert count.read_text() == "x\n"


def test_changed_sources_flags_or_headers_are_compiled_again(
    compile_text: Compile, count: Path, tmp_path: Path
) -> None:
    assert compile_text("text", "one") == "text"
    assert compile_text("other", "two") == "other"
    assert compile_text("text", "three", "-O2") == "text"
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "common.h").write_text("header")
    assert compile_text("text", "four") == "text"
    assert count.read_text() == "x\n" * 4


def test_unused_cache_entries_are_removed(compile_text: Compile, tmp_path: Path) -> None:
    compile_text("old", "one")
    compile_text("used", "two")
    old, used = sorted((tmp_path / "kept").iterdir(), key=lambda path: path.read_text())
    for path in (old, used):
        os.utime(path, (1, 1))
    compile_text("used", "three")
    compile_text("new", "four")
    assert {path.read_text() for path in (tmp_path / "kept").iterdir()} == {"used", "new"}


def test_object_files_are_cached_and_linking_always_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", tmp_path / "kept")
    compiler, linked = tmp_path / "c++", []
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo 1.0\necho x >> $2.count; cp $2 $4\n')
    compiler.chmod(0o755)
    (tmp_path / "main.cpp").write_text("text")
    for name in ("one.o", "two.o", "one.o"):
        run_build(
            [str(compiler), "-c", str(tmp_path / "main.cpp"), "-o", str(tmp_path / name)],
            60,
            lambda *run: linked.append(run),
        )
        assert (tmp_path / name).read_text() == "text"
    assert (tmp_path / "main.cpp.count").read_text() == "x\n" * 2
    run_build([str(compiler), "one.o", "-o", "all.so"], 60, lambda *run: linked.append(run))
    assert linked == [((str(compiler), "one.o", "-o", "all.so"), 60)]


def test_compiler_error_is_raised_and_not_cached(compile_text: Compile, count: Path) -> None:
    for folder in ("one", "other"):
        with pytest.raises(AssertionError, match=r"main\.cpp:1: error"):
            compile_text("wrong", folder)
    assert compile_text("right", "three") == "right"
    assert count.read_text() == "x\n"
