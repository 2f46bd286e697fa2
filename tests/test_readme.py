# SPDX-License-Identifier: Apache-2.0
"""What the pages show runs in a clone, in its order, as a reader would run it; what they name is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from docs.site.reference import PAGES as GENERATED
from tests._support import forked
from tests._support.pages import (
    MARKERS,
    PAGES,
    ROOT,
    SHELLS,
    Block,
    blocks_of,
    commands_named,
    read_block,
    read_command,
    read_named,
    run_block,
)
from tests.store.signatures.conftest import make_key
from trtspec.cli.app import INTERNAL_ERROR, INTERRUPTED, main
from trtspec.core import errors
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import find_method
from trtspec.recipe.load import load_matrix
from trtspec.store.signatures.policy import load_policy

README = (ROOT / "README.md").read_text()
BLOCKS = [block for page in PAGES for block in blocks_of(page, *SHELLS)]
IS_POLICY = re.compile(r"^schema: trtspec\.signature-policy/", re.MULTILINE)
YAML = [block for page in PAGES for block in blocks_of(page, "yaml") if not IS_POLICY.search(block.text)]
POLICIES = [block for page in PAGES for block in blocks_of(page, "yaml") if IS_POLICY.search(block.text)]
SERVES = ("README.md",)
SEEN = (
    "trtspec",
    "model_repository",
    "plugins",
    "benchmarks",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "tests",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with this interpreter's programs first, and one store for all pages.

    `make` takes this environment for its own `.venv`; of `make test`, which runs this test, it shows the commands only.
    There is no GPU and no hub.
    """
    root = tmp_path_factory.mktemp("readme")
    shims = root / "shims"
    shims.mkdir()
    programs = {
        "make": 'case "$1" in test|check) set -- -n "$@";; esac\n'
        'exec /usr/bin/env -i HOME="$HOME" PATH="${PATH#*:}" TRTSPEC_CACHE="$TRTSPEC_CACHE" '
        'TRTSPEC_STATE="$TRTSPEC_STATE" OMP_NUM_THREADS="$OMP_NUM_THREADS" make -o .venv/.installed "$@"\n',
        "nvidia-smi": "exit 0\n",
    }
    for name, script in programs.items():
        (shims / name).write_text(f"#!/usr/bin/env bash\n{script}")
        (shims / name).chmod(0o755)
    forked.make_program(shims / "trtspec")
    return {
        "HOME": str(root),
        "PATH": os.pathsep.join([str(shims), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TRTSPEC_CACHE": str(root / "cache"),
        "TRTSPEC_STATE": str(root / "state"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # two spin where another worker has the core
    }


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory that looks like a clone, of whose prompts every eighth is there: test_quickstart asks all of them."""
    for name in SEEN:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes", ignore=shutil.ignore_patterns("models"))
    (tmp_path / "recipes" / "models").symlink_to(ROOT / "recipes" / "models")
    prompts = tmp_path / "recipes" / "prompts" / "quickstart.jsonl"
    prompts.write_text("".join(prompts.read_text().splitlines(keepends=True)[::8]))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def stopped(clone: Path, environment: dict[str, str]) -> Iterator[None]:
    """No server is left running where a block fails."""
    yield
    subprocess.run(
        ["trtspec", "stop", "quickstart"], cwd=clone, env=environment, capture_output=True, check=False, timeout=300
    )


@pytest.mark.slow
def test_init_writes_the_recipe_shown_on_its_page(clone: Path, environment: dict[str, str]) -> None:
    """Up to the room that models take of this machine's memory."""
    run_block(blocks_of("docs/init.md", *SHELLS)[0], clone, environment)
    (shown,) = (block.text for block in blocks_of("docs/init.md", "yaml"))
    machines_own = r"[\d.]+ of [\d.]+ GiB"
    assert re.sub(machines_own, "", (clone / "mine.yaml").read_text()) == re.sub(machines_own, "", shown)


def run_page(page: str, clone: Path, environment: dict[str, str]) -> None:
    for block in blocks_of(page, *SHELLS):
        if block.marker in ("", "clone"):
            run_block(block, clone, environment)


@pytest.mark.triton
@pytest.mark.integration
@pytest.mark.parametrize("page", SERVES)
def test_blocks_of_serving_pages_run(page: str, clone: Path, environment: dict[str, str], stopped: None) -> None:
    run_page(page, clone, environment)


@pytest.mark.integration
@pytest.mark.parametrize("page", [page for page in PAGES if page not in SERVES and blocks_of(page, *SHELLS)])
def test_blocks_of_other_pages_run(page: str, clone: Path, environment: dict[str, str]) -> None:
    run_page(page, clone, environment)


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == "not run"], ids=str)
def test_blocks_marked_not_run_have_a_reason_and_valid_commands(block: Block) -> None:
    assert block.reason, f"{block}: say why it is not run"
    read_block(block)


def test_most_blocks_run_in_a_clone_or_from_a_wheel(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is run or read, and most are run."""
    assert {block.marker for block in BLOCKS} <= {*MARKERS}
    many = {marker: sum(block.marker == marker for block in BLOCKS) for marker in MARKERS}
    in_clone, in_wheel = many[""] + many["clone"], many[""] + many["wheel"]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(BLOCKS)} blocks of commands: {in_clone} run in a clone, {in_wheel} from a wheel, "
            f"{many['not run']} are only read\n"
        )
    assert len(BLOCKS) - many["not run"] >= 2 * many["not run"]
    assert in_clone >= 12
    assert in_wheel >= 6


def test_command_blocks_are_fenced() -> None:
    indented = re.compile(r"^    (?:trtspec|make|python|pip|git|curl) ", re.MULTILINE)
    assert [page for page in PAGES if indented.search((ROOT / page).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "command",
    ["trtspec cache gc", "trtspec verify --gates a", "trtspec nope", "trtspec build no-such-recipe", "make it"],
)
def test_nonexistent_command_is_detected(command: str) -> None:
    with pytest.raises((KeyError, AssertionError, TyperException)):
        read_command(command.split())


@pytest.mark.parametrize("said", ["trtspec cache gc", "verify --gates", "deploy --address 0.0.0.0", "trtspec nope"])
def test_nonexistent_command_in_text_is_detected(said: str) -> None:
    (words,) = commands_named(f"Use `{said}`.")
    with pytest.raises(AssertionError):
        read_named(words)


def test_console_block_output_is_compared(tmp_path: Path) -> None:
    def block(shown: str) -> Block:
        return Block("x.md", 1, "console", f"$ echo one two; false\n{shown}\n$ exit 3\n", "", "")

    run_block(block("one ..."), tmp_path, os.environ)
    with pytest.raises(AssertionError):
        run_block(block("one"), tmp_path, os.environ)


def test_interface_page_lists_the_exit_codes() -> None:
    listed = re.findall(r"^\| ([0-9 /]+) \|", (ROOT / "docs" / "interface.md").read_text(), re.MULTILINE)
    kinds = [TrtspecError, *(each for each in vars(errors).values() if isinstance(each, type))]
    ours = {each.exit_code for each in kinds if issubclass(each, TrtspecError)}
    assert {int(code) for codes in listed for code in codes.split("/")} == {*ours, 0, 2, INTERNAL_ERROR, INTERRUPTED}


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_text_exist(page: str) -> None:
    for words in commands_named((ROOT / page).read_text(encoding="utf-8")):
        read_named(words)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_yaml_block_is_a_valid_recipe_or_part_of_one(block: Block, clone: Path) -> None:
    """A part is laid over the quickstart, so that each of its keys has the right place and type."""
    (clone / "models").symlink_to(ROOT / "recipes" / "models")
    whole = re.search("^(schema|extends):", block.text, re.MULTILINE)
    (clone / "shown.yaml").write_text(block.text if whole else f"extends: quickstart\n{block.text}")
    for loaded in load_matrix(clone / "shown.yaml"):
        speculation = loaded.recipe.speculation
        find_method(speculation.method).options.model_validate(speculation.options)
    if whole:
        with pytest.raises(SystemExit) as ended:
            main(["check", str(clone / "shown.yaml")])
        assert ended.value.code == 0


@pytest.mark.parametrize("block", POLICIES, ids=str)
def test_shown_policy_is_valid(block: Block, tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    (tmp_path / "trusted_root.json").write_text("{}")
    (tmp_path / "policy.yaml").write_text(block.text)
    assert len(load_policy(tmp_path / "policy.yaml").signers) == 2


def test_error_shown_in_the_readme_matches_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = (ROOT / "recipes" / "quickstart.yaml").read_text()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "quickstart.yaml").write_text(recipe.replace("draft_len: 5", "draft_len: 65"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["check", "copy/quickstart.yaml"])
    said = capsys.readouterr().out.split("\n\n")[0].replace("copy/", "recipes/")
    assert said in README


@pytest.mark.parametrize("page", PAGES)
def test_links_have_existing_targets(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        if "://" not in target:
            file = (ROOT / page).parent / target if target else ROOT / page
            if file.parent == ROOT / "docs" / "reference" and file.stem in GENERATED:  # tests/docs checks these
                continue
            assert file.exists(), target
            assert not section or section in headings(file), f"{target}#{section}"


def headings(page: Path) -> set[str]:
    """Return what links to a page's sections may be called, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_catalogue_page_lists_exactly_the_recipes() -> None:
    catalogue = (ROOT / "recipes" / "README.md").read_text()
    listed = set(re.findall(r"^\| \[([a-z0-9.-]+\.yaml)\]", catalogue, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "recipes").glob("*.yaml")}


def test_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
