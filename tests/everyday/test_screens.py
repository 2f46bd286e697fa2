# SPDX-License-Identifier: Apache-2.0
"""Golden screens of every command, on terminals of 80 and 120 columns and in pipes.

A golden file in `screens/` has a section for each. `pytest tests/everyday/test_screens.py --update-screens`
regenerates them; review the result. Variable parts are replaced:

    the directory                  /home/ada/work/models, which has the same length
    seconds, speeds, speed-ups     N.NN, padded to the width of the column
    dates                          YYYY-MM-DD
    the first 12 digits of a key   digest-00001, numbered in order of appearance
    versions of programs           N.N.N

The machine's memory and disks, the findings of `doctor` and the results of a load benchmark are simulated
(`tests/_support/forks.py`).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests._support.shapes import make_checkpoint, shapes
from tests._support.terminal import ESCAPE, WIDTHS, Commands, Shown, Terminals, commands, has_tmux, piped, terminals
from trtspec.cli.app import all_commands, command_name
from trtspec.core.processes import start_time
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_tmux(), reason="tmux is not installed, which captures the screens"),
]

GOLDEN = Path(__file__).with_name("screens")
ROOT = Path(__file__).parents[2]
HOME = "/home/ada/work/models"
COLOURS = {31: "red", 32: "green", 33: "yellow"}
LARGE = """\
schema: trtspec.recipe/1
name: large
target:
  model: ./large-target
speculation:
  method: draft_target
  draft_len: 4
  draft:
    model: ./large-draft
engine:
  backend: llmapi
  gpu: h100
"""
COMMANDS = sorted(map(command_name, all_commands()))


@dataclass(frozen=True)
class Workspace:
    """A directory with the tiny pair, and the runners for commands in it."""

    root: Path
    commands: Commands
    terminals: Terminals
    scratch: Path
    seen: dict[str, dict[str, Shown]] = field(default_factory=dict)


def forget(root: Path) -> None:
    """Clear the store, for screens that start with an empty one."""
    shutil.rmtree(root / "fresh", ignore_errors=True)


def unbuild(root: Path) -> None:
    """Clear the store and remove the artifact."""
    forget(root)
    shutil.rmtree(root / "build", ignore_errors=True)


def unmeasure(root: Path) -> None:
    """Remove the saved measurements of the artifact."""
    for folder in ("documents", "verified"):
        shutil.rmtree(root / "state" / folder, ignore_errors=True)
    shutil.rmtree(root / "build" / "tiny" / "reports", ignore_errors=True)


def unwrite(root: Path) -> None:
    """Remove the recipes written by commands."""
    for name in ("target.yaml", "recipe-1.2.1.yaml", "llama-3.3-70b-fp8-tp1-1.3.yaml"):
        (root / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Screen:
    """A command, its set-up before each run, and whether it is slow and therefore captured in fewer variants."""

    command: str
    before: Callable[[Path], None] = lambda root: None
    is_long: bool = False
    store: str = "cache"


# The screens are independent of each other.
SCREENS = {
    "plan-of-a-new-pair": Screen("plan recipe.yaml", forget, store="fresh"),
    "build": Screen("build recipe.yaml", unbuild, store="fresh"),
    "build-again": Screen("build recipe.yaml"),
    "build-refused": Screen("build recipe.yaml --out recipe.yaml/tiny"),
    "plan-of-a-built-pair": Screen("plan recipe.yaml"),
    "plan-of-engines": Screen("plan recipe.yaml --set engine.backend=tensorrt_llm --set engine.gpu=h100"),
    "plan-with-a-warning": Screen("plan recipe.yaml --set engine.backend=llmapi --set engine.gpu=h100"),
    "plan-with-a-prediction": Screen("plan large.yaml", forget, store="fresh"),
    "plan-refused": Screen("plan recipe.yaml --set engine.backend=tensorrt_llm"),
    "check": Screen("check recipe.yaml"),
    "check-with-errors": Screen("check recipe.yaml --set speculation.draft_len=99 --set nosuch.key=1"),
    "check-json": Screen("check recipe.yaml --json"),
    "inspect": Screen("inspect build/tiny"),
    "inspect-a-source": Screen("inspect target"),
    "inspect-nothing": Screen("inspect nosuch"),
    "recipes": Screen("recipes"),
    "verify": Screen("verify build/tiny --max-tokens 2 --runs 1", is_long=True),
    "bench": Screen("bench build/tiny --runs 1 --max-tokens 2", is_long=True),
    "bench-a-load": Screen("bench http://127.0.0.1:8000 --concurrency 1,4,16 --slo ttft=60ms,e2e=900ms"),
    "advise": Screen("advise --concurrency 100 --output-tokens 300"),
    "advise-on-a-recipe": Screen("advise recipe.yaml --concurrency 2 --draft model"),
    "readiness": Screen("readiness build/tiny", unmeasure),
    "generate": Screen("generate build/tiny -p the --max-tokens 4", is_long=True),
    "generate-without-a-prompt": Screen("generate build/tiny"),
    "search-skips": Screen(
        "search-skips recipe.yaml --num-prompts 2 --max-tokens 2 --iterations 1", forget, True, "fresh"
    ),
    "doctor": Screen("doctor"),
    "cache": Screen("cache --verify"),
    "ps": Screen("ps"),
    "status": Screen("status ended"),
    "status-of-a-dead-one": Screen("status killed"),
    "status-of-none": Screen("status nosuch"),
    "logs": Screen("logs killed --lines 3"),
    "compare": Screen("compare recipe.yaml trtspec/recipes/quickstart.yaml"),
    "compare-equal": Screen("compare recipe.yaml recipe.yaml"),
    "compare-long-values": Screen("compare recipe.yaml long.yaml"),
    "init": Screen("init target draft", unwrite),
    "migrate": Screen("migrate recipe.yaml --to 1.2.1", unwrite),
    "migrate-incomplete": Screen("migrate llama-3.3-70b-fp8-tp1 --to 1.3", unwrite),
    "plugins": Screen("plugins list"),
    "version": Screen("--version"),
    "rm-refused": Screen("rm running"),
    "help": Screen("--help"),
    "unknown-command": Screen("chek recipe.yaml"),
    "missing-argument": Screen("check"),
    "unknown-option": Screen("check recipe.yaml --nosuch"),
}


@pytest.fixture(scope="module")
def workspace(pair_master: Path) -> Iterator[Workspace]:
    """The pair in a directory of known path length, with deployments, terminals and commands."""
    root = Path(tempfile.mkdtemp(prefix="screens-", dir="/tmp"))
    assert len(str(root)) == len(HOME)
    shutil.copytree(pair_master, root, dirs_exist_ok=True)
    (root / "trtspec").symlink_to(ROOT)
    text = (root / "recipe.yaml").read_text()
    long = "-".join(["a", *["long"] * 9, "name"])
    (root / long).symlink_to("draft")
    (root / "long.yaml").write_text(text.replace("./draft", f"./{long}"))
    make_large_pair(root)
    variables = {"TRTSPEC_CACHE": "cache", "TRTSPEC_STATE": "state", "HF_HUB_CACHE": "hub"}
    environment = {name: str(root / folder) for name, folder in variables.items()} | {"PATH": str(root / "bin")}
    scratch = Path(tempfile.mkdtemp(prefix="screens-", dir="/tmp"))
    with terminals(scratch) as shown, commands(root, environment) as forks, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        patch.setattr("trtspec.deployment.journal.time.time", lambda: 1_700_000_000.0)
        record_deployments()
        assert piped(forks, scratch, ["build", "recipe.yaml"]).code == 0
        yield Workspace(root, forks, shown, scratch)
    shutil.rmtree(root)
    shutil.rmtree(scratch)


def make_large_pair(root: Path) -> None:
    """Create a pair with published shapes as sparse files, and a recipe."""
    known = {shape.name: shape for shape in shapes()}
    for name, shape in (("large-target", "llama-3.1-8b-instruct"), ("large-draft", "llama-3.2-1b-instruct")):
        make_checkpoint(known[shape], root / name)
        (root / name / "generation_config.json").write_text('{"eos_token_id": [128001, 128008, 128009]}')
    (root / "large.yaml").write_text(LARGE)


def record_deployments() -> None:
    """Record one apparently running, one stopped and one dead deployment; no process receives a signal."""
    record = DeploymentRecord(
        "running", "live", "/build/tiny", 1, start_time(1), 18000, 18001, 18002, "x", detached=True
    )
    record = replace(record, backend="embedded", method="draft_target")
    gone = replace(record, started=1)  # no process with this id has this start time
    for each in (record, replace(gone, name="ended", state="stopped"), replace(gone, name="killed")):
        journal = DeploymentJournal(each.name)
        journal.root.mkdir(parents=True)
        journal.write(each)
        journal.log.write_text("I1114 22:13:20 server starts\n" + "\x1b[31mE1114\x1b[0m out of memory, " * 6 + "ends\n")


def capture(workspace: Workspace, name: str) -> dict[str, Shown]:
    """Return the output of a command by variant; each command runs once for all tests."""
    if name not in workspace.seen:
        screen = SCREENS[name]
        argv, seen = shlex.split(screen.command), {}
        store = {"TRTSPEC_CACHE": str(workspace.root / screen.store)}
        for width in WIDTHS[:1] if screen.is_long else WIDTHS:
            screen.before(workspace.root)
            seen[f"terminal, {width} columns"] = workspace.terminals.run(workspace.commands, width, argv, **store)
        screen.before(workspace.root)
        seen["pipe"] = piped(workspace.commands, workspace.scratch, argv, **store)
        workspace.seen[name] = seen
    return workspace.seen[name]


VERDICTS = "(?:Ship it|It pays|Do not ship|Not decided)"  # the set depends on the current speed of the machine


def normal(text: str, root: Path) -> str:
    """Return a text with variable parts replaced, keeping widths that affect the layout."""
    text = text.replace(str(root), HOME)
    text = re.sub(r"\d+(\.\d+) s\b", lambda found: f"N.{'N' * (len(found[1]) - 1)} s", text)
    text = re.sub(r"\d+ tokens/s", "NNN tokens/s", text)
    text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "YYYY-MM-DD", text)
    text = re.sub(r"(?m)^((?:target alone|speculative) )( *\d+)( +\d+\.\d\dx)", _speeds, text)
    text = re.sub(r"\d+\.\d\d (times|to|by total)", r"N.NN \1", text)
    text = re.sub(r"(N\.NN to\s+)\d+\.\d\d", r"\1N.NN", text)
    text = re.sub(r"\bsha256:[0-9a-f]{64}\b", f"sha256:{'d' * 64}", text)
    text = re.sub(r"\b(python|numpy|trtspec) \d[\w.+]*", r"\1 N.N.N", text)
    # whether a file is new enough to be hashed again depends on the machine's speed
    text = re.sub(r", \d+ of them unchanged\s+since the last check", "", text)
    text = re.sub(rf"(?ms)^{VERDICTS}.*?(?=^build/tiny: 3 prompts)", "(the verdict)\n", text)
    text = re.sub(rf"(?m)^(green|red|yellow): {VERDICTS}.*", "(a colour): (the verdict)", text)
    digests: dict[str, str] = {}
    return re.sub(r"\b[0-9a-f]{12}\b", lambda d: digests.setdefault(d[0], f"digest-{len(digests) + 1:05}"), text)


def _speeds(found: re.Match[str]) -> str:
    return found[1] + "NNN".rjust(len(found[2])) + "N.NNx".rjust(len(found[3]))


def coloured(screen: str) -> Iterator[str]:
    """Yield the coloured lines, prefixed with the name of the colour."""
    for line in screen.splitlines():
        codes = {int(code) for found in ESCAPE.findall(line) for code in found.split(";") if code}
        names = [name for code, name in COLOURS.items() if code in codes]
        if names:
            yield f"{' '.join(names)}: {ESCAPE.sub('', line)}"


def described(command: str, seen: dict[str, Shown], root: Path) -> str:
    """Return the content of a golden file."""
    codes = {shown.code for shown in seen.values()}
    assert len(codes) == 1, "the exit code is the same everywhere"
    sections = {"exit code": str(codes.pop())}
    for where, shown in seen.items():
        if where == "pipe":
            sections |= {"pipe, standard output": shown.out, "pipe, standard error": shown.err}
        else:
            sections[where] = ESCAPE.sub("", shown.out)
    if colours := "\n".join(coloured(seen["terminal, 80 columns"].out)):
        sections["colours"] = colours
    told = [f"$ trtspec {command}"]
    for title, text in sections.items():
        same = next((earlier for earlier in sections if sections[earlier] == text), title) if text.strip() else title
        told.append(f"──── {title} " + "─" * (74 - len(title)))
        told.append(text.rstrip("\n") if same == title else f"(as {same})")
    return normal("\n".join(told), root) + "\n"


def compare_golden(name: str, text: str, *, update: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"missing golden screen {path.name}; run pytest --update-screens"
    assert text == path.read_text(encoding="utf-8"), f"{path.name} has changed; if correct, run pytest --update-screens"


@pytest.mark.parametrize("name", SCREENS)
def test_screen_matches_the_golden_file(name: str, workspace: Workspace, pytestconfig: pytest.Config) -> None:
    text = described(SCREENS[name].command, capture(workspace, name), workspace.root)
    compare_golden(name, text, update=pytestconfig.getoption("update_screens"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_screen_matches_the_golden_file(name: str, workspace: Workspace, pytestconfig: pytest.Config) -> None:
    shown = workspace.terminals.run(workspace.commands, 80, [name, "--help"])
    text = described(f"{name} --help", {"terminal, 80 columns": shown}, workspace.root)
    assert not any(line.rstrip().endswith("...") for line in text.splitlines() if not line.startswith("Usage"))
    compare_golden(f"help-{name}", text, update=pytestconfig.getoption("update_screens"))


@pytest.mark.parametrize("name", SCREENS)
def test_line_does_not_end_within_a_word_or_in_spaces(name: str, workspace: Workspace) -> None:
    """Only a word that is longer than a row continues on the next one."""
    seen = capture(workspace, name)
    whole = set((seen["pipe"].out + seen["pipe"].err).split())
    for line in (*seen["pipe"].out.splitlines(), *seen["pipe"].err.splitlines()):
        assert line == line.rstrip()
    for width in WIDTHS[: len(seen) - 1]:
        rows = ESCAPE.sub("", seen[f"terminal, {width} columns"].out).splitlines()
        for row, following in pairwise(rows):
            word = (row.split() or [""])[-1] + (following.split() or [""])[0]
            assert len(row) < width or word not in whole or len(word) > width - 4, (row, following)


@pytest.mark.parametrize(
    "name", ["check-with-errors", "plan-of-engines", "plan-refused", "inspect", "compare", "init", "migrate-incomplete"]
)
def test_terminal_and_pipe_show_the_same_text(name: str, workspace: Workspace) -> None:
    seen = capture(workspace, name)
    shown = ESCAPE.sub("", seen["terminal, 80 columns"].out)
    assert words(shown) == words(seen["pipe"].out + seen["pipe"].err)


def words(text: str) -> list[str]:
    r"""Return the sorted words of a text, without the line separators \ and ;."""
    return sorted(re.sub(r" \\\n|;", " ", text).split())


@pytest.mark.parametrize("name", ["check-with-errors", "cache", "doctor", "plan-with-a-warning", "compare"])
def test_no_color_output_has_the_same_text(name: str, workspace: Workspace) -> None:
    argv = shlex.split(SCREENS[name].command)
    plain = workspace.terminals.run(workspace.commands, 80, argv, NO_COLOR="1").out
    assert not list(coloured(plain))
    before = ESCAPE.sub("", capture(workspace, name)["terminal, 80 columns"].out)
    assert normal(ESCAPE.sub("", plain), workspace.root) == normal(before, workspace.root)


@pytest.mark.parametrize("name", ["build-again", "check-with-errors", "recipes", "help", "unknown-command"])
def test_ci_output_matches_the_pipe_output(name: str, workspace: Workspace) -> None:
    seen = piped(
        workspace.commands, workspace.scratch, shlex.split(SCREENS[name].command), CI="true", GITHUB_ACTIONS="true"
    )
    pipe = capture(workspace, name)["pipe"]
    assert seen.code == pipe.code
    assert [normal(text, workspace.root) for text in (seen.out, seen.err)] == [
        normal(text, workspace.root) for text in (pipe.out, pipe.err)
    ]
    assert "\x1b" not in seen.out + seen.err


def test_json_document_is_alone_on_stdout(workspace: Workspace) -> None:
    for command in ("schema", "check recipe.yaml --json", "plan recipe.yaml --json", "verify nosuch --json"):
        assert json.loads(piped(workspace.commands, workspace.scratch, shlex.split(command)).out)
