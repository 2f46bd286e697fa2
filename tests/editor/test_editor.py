# SPDX-License-Identifier: Apache-2.0
"""What an editor offers and underlines in a recipe, by a real language server and the schema that we print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests._support.npm import Unavailable
from tests.conftest import Run
from tests.editor.language_server import LanguageServer, install
from trtspec.backends.base import backends
from trtspec.core.gpus import GPUS
from trtspec.core.paths import recipes_dir
from trtspec.core.registry import discover
from trtspec.methods.base import ATTRIBUTE, PACKAGE, find_method
from trtspec.planning.completion import editor_schema

METHODS = sorted(discover(PACKAGE, ATTRIBUTE))
VERSIONS = {version for backend in backends().values() for version in backend.versions() if version}
SCHEMA = "recipe.schema.json"
HEAD = f"# yaml-language-server: $schema={SCHEMA}\nschema: trtspec.recipe/1\nname: x\ntarget: {{model: ./t}}\n"
NUMBERS = count()

Edit = Callable[[str], tuple[Path, list[dict[str, Any]], int, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schema that `trtspec schema` prints."""
    root = tmp_path_factory.mktemp("editor")
    (root / SCHEMA).write_text(json.dumps(editor_schema()))
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LanguageServer]:
    """A running server."""
    try:
        script = install()
    except Unavailable as reason:
        pytest.skip(str(reason))
    server = LanguageServer(script, folder)
    yield server
    server.close()


@pytest.fixture
def edit(server: LanguageServer, folder: Path) -> Edit:
    """Open a recipe; returns its path, diagnostics, and line and column of `|`, where the cursor is."""

    def opened(text: str) -> tuple[Path, list[dict[str, Any]], int, int]:
        before, _, after = (HEAD + text).partition("|")
        lines = before.split("\n")
        path = folder / f"{next(NUMBERS)}.yaml"
        return path, server.open(path, before + after), len(lines) - 1, len(lines[-1])

    return opened


def offered(server: LanguageServer, edit: Edit, text: str) -> dict[str, dict[str, Any]]:
    path, _, line, column = edit(text)
    return server.complete(path, line, column)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("speculation:\n  method: |\n", {*METHODS}),
        ("engine:\n  backend: |\n", {"auto", *backends()}),
        ("engine:\n  gpu: |\n", {*GPUS}),
        ("engine:\n  version: |\n", VERSIONS),
    ],
)
def test_extension_names_are_completed(text: str, wanted: set[str], server: LanguageServer, edit: Edit) -> None:
    assert wanted <= {label.strip('"') for label in offered(server, edit, text)}


OPTIONS = "speculation:\n  method: {}\n  options:\n    |\n"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_completed_options_are_those_of_the_method(method: str, server: LanguageServer, edit: Edit) -> None:
    found = offered(server, edit, OPTIONS.format(method))
    fields = find_method(method).options.model_fields
    assert set(found) == set(fields)
    for name, item in found.items():
        assert item["documentation"] == fields[name].description


@pytest.mark.slow
def test_option_values_are_completed_by_type(server: LanguageServer, edit: Edit) -> None:
    text = "speculation:\n  method: draft_target\n  options:\n    use_draft_logits: |\n"
    assert {"true", "false"} == set(offered(server, edit, text))
    assert {"attention", "mlp"} == set(
        offered(server, edit, "speculation:\n  method: swift\n  options:\n    skip:\n      |\n")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "wrong", "message"),
    [
        ("speculation: {method: ngram, options: {top_k: 3}}", "top_k", "Property top_k is not allowed"),
        ("speculation: {method: eagle3, options: {min_match: 3}}", "min_match", "Property min_match is not allowed"),
        ("speculation: {method: ngram, options: {min_match: many}}", "many", 'Incorrect type. Expected "integer"'),
        ("speculation: {method: ngram, options: {min_match: 65}}", "65", "Value is above the maximum of 64"),
        ("speculation: {method: eagle3, draft_len: 17}", "17", "Value is above the maximum of 16"),
        ("speculation: {method: ngrams}", "ngrams", "Value is not accepted. Valid values: "),
        ("engine: {backend: tensorrt}", "tensorrt", "Value is not accepted. Valid values: "),
    ],
)
def test_invalid_text_is_underlined_with_a_message(text: str, wrong: str, message: str, edit: Edit) -> None:
    _, (diagnostic,), _, _ = edit(text + "\n|")
    assert diagnostic["message"].startswith(message)
    start, end = (diagnostic["range"][place] for place in ("start", "end"))
    assert start["line"] == HEAD.count("\n")
    assert text[start["character"] : end["character"]] == wrong


@pytest.mark.slow
def test_valid_text_is_not_underlined(edit: Edit) -> None:
    for text in (
        "speculation: {method: ngram, options: {min_match: 3}}",
        "speculation: {draft_len: 4}",
        "engine: {gpu: H100, version: '1.2'}",
        "engine: {gpu: null}",
    ):
        assert edit(text + "\n|")[1] == []


@pytest.mark.slow
def test_catalogue_recipes_are_not_underlined(server: LanguageServer, folder: Path) -> None:
    for path in recipes_dir().glob("*.yaml"):
        text = re.sub("^# yaml-language-server: .*\n", "", path.read_text())
        assert server.open(folder / path.name, f"# yaml-language-server: $schema={SCHEMA}\n{text}") == [], path.name


# Without a server


def test_printed_schema_is_the_editor_schema_with_all_names(trtspec: Run) -> None:
    printed = json.loads(trtspec("schema").out)
    assert printed == editor_schema()
    engine = printed["$defs"]["Engine"]["properties"]
    assert set(engine["version"]["anyOf"][0]["enum"]) == VERSIONS
    assert printed["$defs"]["Speculation"]["properties"]["method"]["enum"] == METHODS
    assert trtspec("schema", "--json").document["schema"] == printed


def test_every_option_has_a_description_and_a_type() -> None:
    definitions = editor_schema()["$defs"]
    for method in METHODS:
        for name, option in definitions[f"{method}.options"]["properties"].items():
            assert option["description"], (method, name)
            assert {"type", "anyOf", "$ref"} & set(option), (method, name)


def test_every_schema_reference_resolves() -> None:
    schema = editor_schema()
    for reference in re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(schema)):
        part = schema
        for key in reference.split("/"):
            part = part[key]


def test_method_of_another_package_is_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**discover(PACKAGE, ATTRIBUTE), "outside": find_method("ngram")}
    monkeypatch.setattr("trtspec.planning.completion.discover_all", lambda package, attribute: found)
    schema = editor_schema()
    assert "outside" in schema["$defs"]["Speculation"]["properties"]["method"]["enum"]
    assert "min_match" in schema["$defs"]["outside.options"]["properties"]


def test_installation_without_node_reports_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="node is not installed"):
        install()
