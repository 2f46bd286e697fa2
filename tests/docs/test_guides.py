# SPDX-License-Identifier: Apache-2.0
"""The guides: each command is accepted by the real command line or by docker's double, recipes load, links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from tests import test_readme
from tests._support.guides import (
    GUIDES,
    blocks,
    here_documents,
    read_guide_command,
    recipes_known_to,
    recipes_written_by,
    simple_commands,
)
from tests._support.pages import MARKERS, ROOT, Block, commands_named, read_named
from tests.doubles.docker_command import DockerUsageError, read_docker
from trtspec.backends.base import backends, find_backend
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain
from trtspec.cli.renamed import _COMMANDS, _OPTIONS
from trtspec.deployment.containers import dns_label
from trtspec.methods.base import find_method
from trtspec.recipe.load import load_matrix

DIGEST = "0" * 64
BASE = f"nvcr.io/nvidia/tritonserver@sha256:{DIGEST}"
GPU_PAGES = [page for page in GUIDES if "/gpu-" in page]


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_commands_are_accepted(block: Block) -> None:
    recipes = recipes_known_to(block.page)
    for words in simple_commands(block):
        read_guide_command(words, recipes)


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_block_is_run_or_has_the_reason(block: Block) -> None:
    assert block.marker in MARKERS
    assert block.marker != "not run" or block.reason, f"{block}: give the reason"


@pytest.mark.parametrize("page", GUIDES)
def test_commands_in_text_exist(page: str) -> None:
    for words in commands_named((ROOT / page).read_text(encoding="utf-8")):
        if words[0] != "read":
            read_named(words)


@pytest.mark.parametrize("page", GUIDES)
def test_links_have_existing_targets(page: str) -> None:
    test_readme.test_links_have_existing_targets(page)


@pytest.mark.parametrize("page", GUIDES)
def test_page_is_short(page: str) -> None:
    assert 30 <= len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 160


def load(text: str, directory: Path) -> None:
    """Load a recipe, or a part of one laid over the quickstart, with the options of its method."""
    (directory / "models").symlink_to(ROOT / "recipes" / "models")
    (directory / "prompts").symlink_to(ROOT / "recipes" / "prompts")
    whole = re.search("^(schema|extends):", text, re.MULTILINE)
    (directory / "shown.yaml").write_text(text if whole else f"extends: quickstart\n{text}")
    for loaded in load_matrix(directory / "shown.yaml"):
        speculation = loaded.recipe.speculation
        find_method(speculation.method).options.model_validate(speculation.options)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_block_is_a_valid_recipe_or_part_of_one(block: Block, tmp_path: Path) -> None:
    load(block.text, tmp_path)


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page in GUIDES for name in recipes_written_by(page)], ids=str
)
def test_recipe_that_a_page_writes_loads(page: str, name: str, tmp_path: Path) -> None:
    load(recipes_written_by(page)[name].replace("$BASE", BASE), tmp_path)


@pytest.mark.parametrize("page", GPU_PAGES)
def test_gpu_page_leads_from_requirements_to_rollback(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "**No command of this page has run on a GPU yet.**" in text
    steps = ["## Requirements", "trtspec build", "trtspec verify", "--manifest", "trtspec deploy", "trtspec status"]
    for step in [*steps, "HF_TOKEN", "## A new version, and back"]:
        assert step in text, step
    assert not re.search(r"HF_TOKEN=\S", text), "a token must not be on a command line"


@pytest.mark.parametrize("page", GPU_PAGES)
def test_gpu_page_uses_an_image_with_the_engine_of_its_recipe(page: str, tmp_path: Path) -> None:
    """The name is the one by which clients in containers know the model."""
    ((file, text),) = recipes_written_by(page).items()
    (tmp_path / file).write_text(text.replace("$BASE", BASE))
    (loaded,) = load_matrix(tmp_path / file)
    engine, shown = loaded.recipe.engine, (ROOT / page).read_text(encoding="utf-8")
    assert dns_label(loaded.recipe.name) == loaded.recipe.name
    assert f'"model": "{loaded.recipe.name}"' in shown
    assert str(engine.version) in shown
    if images := find_backend(engine.backend).serving().images(str(engine.version)):
        assert re.findall(r"^TAG=(\S+)$", shown, re.MULTILINE) == [images[0]]
    if engine.backend in ("tensorrt_llm", "llmapi"):
        assert find_version_spec(str(engine.version)).release(str(engine.version)).driver in shown


def test_every_engine_has_a_gpu_page() -> None:
    named = {Path(page).stem.removeprefix("gpu-").replace("-", "_") for page in GPU_PAGES}
    assert named == {name for name, backend in backends().items() if not backend.in_process}


def test_upgrade_page_lists_the_renamed_commands_and_options() -> None:
    text = (ROOT / "docs" / "how-to" / "upgrade.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+`) \| `(--[a-z-]+)` \| `(--[a-z-]+)` \|$", text, re.MULTILINE)
    listed = {(command, old, new) for commands, old, new in rows for command in re.findall(r"`([a-z-]+)`", commands)}
    renamed = {(command, old, new) for command, pairs in _OPTIONS.items() for old, new in pairs.items()}
    assert listed == renamed
    assert all(f"`{old}`" in text and f"`{new}`" in text for old, new in _COMMANDS.items())


def test_first_change_page_names_real_code() -> None:
    text = (ROOT / "docs" / "how-to" / "first-change.md").read_text(encoding="utf-8")
    options = (ROOT / "trtspec" / "cli" / "options.py").read_text(encoding="utf-8")
    assert "SECONDS = {" in options
    assert "parse_seconds" in options
    assert "is not a duration" in options
    assert "tests/everyday/test_cache.py" in text


def test_docker_accepts_the_commands_that_trtspec_runs() -> None:
    toolchain = EngineToolchain("image", BASE, "1.2.1", "10.14.1.48", "h100", 90, "590.44.01")
    command = toolchain.command(["--output_dir", "engines/target"], reads=["a", "b"], writes="c", cid_file="target.cid")
    assert read_docker(command) == ["trtllm-build", "--output_dir", "engines/target"]
    for rest in ("up --detach --wait --wait-timeout=300", "ps --all --format=json", "logs --no-color", "down"):
        read_docker(["docker", "compose", "--file", "compose.yaml", *rest.split()])


@pytest.mark.parametrize(
    "words",
    [
        "docker run --gpus all --rm nvcr.io/nvidia/tritonserver:26.07-py3 nvidia-smi",
        "docker run --gpu all $BASE",
        "docker run --env HF_TOKEN=hf_x $BASE",
        "docker run --publish 8000:8000 $BASE",
        "docker run --volume /models $BASE",
        "docker run --gpus",
        "docker run --rm --restart always $BASE",
        "docker build --build-arg BASE --tag x .",
        "docker build --tag x",
        "docker buildx imagetools inspect",
        "docker imagetools inspect x",
        "docker compose up",
        "docker compose -f x.yaml start",
    ],
)
def test_wrong_docker_command_is_detected(words: str) -> None:
    with pytest.raises(DockerUsageError):
        read_docker(words.split())


def test_command_in_a_container_is_returned() -> None:
    words = ["docker", "run", "--rm", "--gpus", "all", "--env", "HF_TOKEN", "$BASE", "trtspec", "nope"]
    assert read_docker(words) == ["trtspec", "nope"]
    with pytest.raises(KeyError):
        read_guide_command(words, set())


@pytest.mark.parametrize(
    "words",
    ["trtspec build quickstart --untill convert", "trtspec build missing.yaml", "trtspec nope", "docker runn x"],
)
def test_wrong_command_is_detected(words: str) -> None:
    with pytest.raises((KeyError, AssertionError, TyperException)):
        read_guide_command(words.split(), {"written.yaml"})


def test_remote_and_nested_commands_are_found() -> None:
    nested = 'DIGEST=$(docker buildx imagetools inspect "$TAG" | tr -d x)'
    text = f"{nested}\nssh box trtspec ps\ncat > a.yaml <<END\nx: 1\nEND\n"
    block = Block("x.md", 1, "sh", text, "not run", "a test")
    commands = list(simple_commands(block))
    assert ["docker", "buildx", "imagetools", "inspect", "$TAG"] in commands
    assert ["trtspec", "ps"] in commands
    assert here_documents(text) == {"a.yaml": "x: 1\n"}
