# SPDX-License-Identifier: Apache-2.0
"""Two hundred invalid recipes, damaged files and unusual environments: each gives a proper error.

A proper error has a documented exit code, no traceback, and a location and hint for each problem.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests._support.confined import as_anybody, limited, mounted
from trtspec.cli.app import main
from trtspec.recipe.validate import SELF_EXPLANATORY, recipe_keys

pytestmark = pytest.mark.slow  # many complete commands

EXIT_CODES = {0, 1, 2, 100, 101, 102, 110, 111, 112}
SECONDS = 60
# Deterministic inputs. Each example restores the fixtures itself.
COMMON = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@dataclass(frozen=True)
class Answer:
    """Output of a command."""

    code: int
    out: str
    err: str


def ask(*arguments: object) -> Answer:
    """Run a command in this process, with a limit of SECONDS."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{arguments} did not end")

    out, err, before = io.StringIO(), io.StringIO(), signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Answer(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def hold(answer: Answer) -> dict[str, Any]:
    """Check the error of a command and return its JSON document."""
    assert "Traceback" not in answer.out + answer.err, answer.err
    assert answer.code in EXIT_CODES, answer
    document: dict[str, Any] = json.loads(answer.out)
    if "error" in document:
        error = document["error"]
        assert answer.code == error["exit_code"]
        assert error["message"]
        assert error["hint"] or "expected" in error["message"], error
    for problem in document.get("problems", []):
        assert problem["message"]
        assert problem["hint"] or problem["code"] in SELF_EXPLANATORY, problem
        assert problem["file"], problem
        assert problem["line"] or problem["path"] in ("", "schema", "name", "target"), problem
    return document


METHODS: dict[str, dict[str, Any]] = {
    "none": {}, "ngram": {}, "lookahead": {}, "swift": {},
    **{name: {"draft": {"model": "./draft"}} for name in ("draft_target", "medusa", "eagle", "eagle3", "redrafter")},
}  # fmt: skip
LIKELY: dict[str, list[Any]] = {
    "engine.gpu": ["h200", "l4", "a100", "b200", "H200", "h20o"],
    "engine.version": ["1.2.1", "0.20.0", "9.9.9", "1.2"],
    "engine.max_batch_size": [1, 64, 10**5],
    "engine.max_seq_len": [1, 16, 257, 10**6],
    "engine.max_input_len": [1, 255],
    "engine.max_num_tokens": [1, 7, 10**9],
    "engine.extra": [{"gemm_plugin": "auto"}, {"nope": 1}, {"max_beam_width": 4}],
    "target.quantization.weights": ["fp8", "fp8_rowwise"],
    "target.quantization.kv_cache": ["fp8"],
    "target.parallel.tensor": [2, 3, 16, 64],
    "target.parallel.pipeline": [2, 3, 64],
    "target.dtype": ["float16"],
    "speculation.draft_len": [1, 8, 64],
    "speculation.options.choices": [[[0]], [[0, 0]], "mc_sim_7b_63", [[0], [0]], [[999]]],
    "speculation.options.top_k": [0, 10, 10**6],
    "speculation.options.skip": [{"attention": [0], "mlp": [9]}, {}],
    "serving.placement": [{"target": [0]}, {"target": [0, 1], "draft": [5]}, {"target": [10**6]}],
    "gates": [{"min_acceptance": 0.5}, {"min_speedup": 1e9}, {"lossless": False}, {"prompts": "./nope.jsonl"}],
    "plugins": [["verify_chain"], ["nope"]],
    "matrix": [{"speculation.draft_len": [1, 2]}, {"nope": [1]}, {"target": 1}, [{"a.b": []}]],
    "extends": ["nope.yaml", "recipe.yaml", "/dev/zero", "..", 7],
}
ODD: list[Any] = [
    0, 1, -1, 64, 65, 2**31, 2**63, 10**30, -(2**40), 0.5, -0.1, float("nan"), float("inf"), 1e308, True, False, None,
    "", "a", "A B", "auto", "none", "draft-target", "fp8", "float32", "sglang", "1.2", "target", "./target", "/",
    "/dev/null", "/dev/zero", "/etc/passwd", "..", "~", "~nobody/x", "/proc/self/mem", "meta-llama/Llama-3.1-8B",
    "a\nb", "\x00", "\u202e", "é" * 80, "x" * 5000, "env:NOPE", "file:/etc/shadow", "${HOME}", "--help", "0" * 40,
    "a" * 64, "2024-01-01",
    [], {}, [1], [0, 0], [[]], ["["], [None], {"a": 1}, {"": None}, {1: 2}, {"model": "./draft"},
]  # fmt: skip
NOISE = [
    "{", "[", "}", ":", "\t", "\n", "'", '"', "- ", "&a ", "*a ", "!!python/object:os.system ", "|", "%", "\x07", "#",
    "? ", "---\n", "...\n", "<<: *x", "\ufeff", "\ud800",
]  # fmt: skip


def edited(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(document.get(key), dict):
            document[key] = {}
        document = document[key]
    document[last] = value


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Return one to three changes of a recipe: likely mistakes, unusual values and unknown keys."""
    found: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 9))
        if kind < 5:
            path = draw(st.sampled_from(sorted(LIKELY)))
            found.append((path, draw(st.sampled_from(LIKELY[path]))))
        else:
            path = draw(st.sampled_from(sorted(recipe_keys())))
            found.append((path + "s" * (kind == 9), draw(st.sampled_from(ODD))))
    return found


noises = st.none() | st.tuples(st.floats(0, 1), st.sampled_from(NOISE))
backends = st.sampled_from(["auto", "auto", "embedded", "tensorrt_llm", "vllm", "llmapi", "nope"])


@given(st.sampled_from(sorted(METHODS)), backends, edits(), noises)
@settings(max_examples=100, **COMMON)
def test_mutated_recipe_is_handled_without_traceback(
    recipe: Path, method: str, backend: str, changes: list[tuple[str, Any]], noise: tuple[float, str] | None
) -> None:
    document = yaml.safe_load(recipe.read_text())
    document["speculation"] = {"method": method, **copy.deepcopy(METHODS[method])}
    document["engine"]["backend"] = backend
    for path, value in changes:
        edited(document, path, copy.deepcopy(value))
    text = yaml.safe_dump(document, sort_keys=False)
    if noise:
        place = int(noise[0] * len(text))
        text = text[:place] + noise[1] + text[place:]
    wrong = recipe.with_name("wrong.yaml")
    wrong.write_bytes(text.encode("utf-8", "surrogatepass"))
    checked = hold(ask("check", wrong, "--json"))
    if checked["ok"] or noise:  # otherwise it starts with the same check
        planned = hold(ask("plan", wrong, "--json"))
        assert ("steps" in planned or "recipes" in planned) == checked["ok"]


def cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * (len(data) - 1))] ^= 0x21
    path.write_bytes(data)


def revalue(path: Path, share: float) -> None:
    """Put an unusual value into a JSON document or a safetensors header; truncate other files."""
    data, header = path.read_bytes(), b""
    if path.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        header, data = data[8 : 8 + size], data[8 + size :]
    try:
        document = json.loads(header or data)
    except ValueError:
        document = None
    keys = sorted(document) if isinstance(document, dict) else []
    if keys:
        value = ODD[int(share * 7919) % len(ODD)]
        document[keys[int(share * (len(keys) - 1))]] = value if not isinstance(value, dict) else {"a": [1, None]}
    if document is None:
        cut(path, share)
        return
    text = json.dumps(document).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data if header else text)


def replaced(make: Callable[[Path], object]) -> Callable[[Path, float], None]:
    def damage(path: Path, share: float) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGES: dict[str, Callable[[Path, float], None]] = {
    "cut": cut,
    "flipped": flip,
    "another value": revalue,
    "a value more": lambda path, share: revalue(path, 1 - share),
    "empty": lambda path, share: cut(path, 0),
    "nested": lambda path, share: path.write_bytes(b"[" * 100_000) and None,
    "missing": replaced(lambda path: None),
    "a directory": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a link to nowhere": replaced(lambda path: path.symlink_to("nowhere")),
    "a link to itself": replaced(lambda path: path.symlink_to(path.name)),
    "a device without end": replaced(lambda path: path.symlink_to("/dev/zero")),
}
SOURCES = (
    "target/config.json", "target/tokenizer.json", "target/tokenizer_config.json", "target/model.safetensors",
    "draft/config.json", "draft/model.safetensors", "prompts.jsonl",
)  # fmt: skip


@contextlib.contextmanager
def damaged(path: Path, damage: str, share: float) -> Iterator[None]:
    """Damage a file while the block runs; then restore its directory."""
    whole = path.read_bytes()
    path.write_bytes(whole)  # an artifact's files are hard links into the store, which must stay intact
    try:
        DAMAGES[damage](path, share)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(whole)


@given(st.sampled_from(SOURCES), st.sampled_from(sorted(DAMAGES)), st.floats(0, 1))
@settings(max_examples=40, **COMMON)
def test_damaged_source_is_handled_without_traceback(recipe: Path, name: str, damage: str, share: float) -> None:
    with damaged(recipe.parent / name, damage, share):
        hold(ask("plan", recipe, "--json"))
        hold(ask("inspect", recipe.parent / name.partition("/")[0], "--json"))


@given(st.data(), st.sampled_from(sorted(DAMAGES)), st.floats(0, 1))
@settings(max_examples=30, **COMMON)
def test_damaged_artifact_is_handled_without_traceback(
    artifact: Path, data: st.DataObject, damage: str, share: float
) -> None:
    names = sorted(str(path.relative_to(artifact)) for path in artifact.rglob("*") if path.is_file())
    name = data.draw(st.sampled_from(names))
    shutil.copy2(artifact / name, copied := artifact / f"{name}.copy")
    copied.replace(artifact / name)
    with damaged(artifact / name, damage, share):
        hold(ask("verify", artifact, "--max-tokens", 2, "--report", "report.json", "--json"))
        hold(ask("inspect", artifact, "--json"))
        hold(ask("generate", artifact, "-p", "the", "--max-tokens", 2, "--json"))
        if name.endswith((".json", ".jsonl")):
            hold(ask("bench", artifact, "--runs", 1, "--max-tokens", 2, "--json"))


VALUES = ["", "nosuch/deep", "file", "/proc/self/mem", "/dev/null", "/proc/nosuch", "x" * 5000, "~/x", "-", "\n", "é"]
VARIABLES = (
    "TRTSPEC_CACHE",
    "TRTSPEC_STATE",
    "HF_HUB_CACHE",
    "HF_TOKEN",
    "TMPDIR",
    "HOME",
    "COLUMNS",
    "NO_COLOR",
    "PATH",
)
COMMANDS = (
    ("check", "recipe.yaml"),
    ("plan", "recipe.yaml"),
    ("build", "recipe.yaml"),
    ("cache",),
    ("ps",),
    ("doctor",),
)


@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(VALUES), min_size=1, max_size=3),
    st.sampled_from(COMMANDS),
)
@settings(max_examples=40, **COMMON)
def test_odd_environment_variables_are_handled_without_traceback(
    recipe: Path, variables: dict[str, str], command: tuple[str, ...]
) -> None:
    (recipe.parent / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        hold(ask(*command, "--json"))


@pytest.mark.parametrize("size", [0, 100, 20_000])
@pytest.mark.parametrize("command", ["check recipe.yaml", "build recipe.yaml", "migrate recipe.yaml --to 1.2.1"])
def test_file_size_limit_is_handled_without_traceback(recipe: Path, command: str, size: int) -> None:
    ended = limited(size, *command.split(), "--json")
    document = hold(Answer(ended.returncode, ended.stdout, ended.stderr))
    if ended.returncode:
        assert "error" in document or not document["ok"]
    assert not list(recipe.parent.glob("build/*")) or ended.returncode == 0, "no partial artifact is visible"


@pytest.mark.parametrize("place", ["", "target", "cache", "state", "build"])
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_directory_without_permission_is_handled_without_traceback(recipe: Path, place: str, mode: int) -> None:
    (recipe.parent / place).mkdir(exist_ok=True)
    path = recipe.parent / place
    path.chmod(mode)
    try:
        for command in (("build", recipe), ("cache",), ("ps",)):
            ended = as_anybody(*command, "--json")
            hold(Answer(ended.returncode, ended.stdout, ended.stderr))
    finally:
        path.chmod(0o755)


@pytest.fixture
def own_mounts(tmp_path: Path) -> None:
    """Skip if file systems cannot be mounted."""
    (tmp_path / "probe").mkdir()
    may = ["unshare", "--mount", "mount", "-t", "tmpfs", "probe", str(tmp_path / "probe")]
    if not shutil.which("unshare") or subprocess.run(may, check=False, capture_output=True, timeout=SECONDS).returncode:
        pytest.skip("no file system may be mounted here")


@pytest.mark.parametrize("options", ["size=64k", "ro"])
@pytest.mark.parametrize("place", ["cache", "state", "build"])
def test_full_or_read_only_file_system_is_handled_without_traceback(
    recipe: Path, own_mounts: None, place: str, options: str
) -> None:
    (recipe.parent / place).mkdir()
    for command in ("build recipe.yaml", "check recipe.yaml", "cache", "ps"):
        ended = mounted(recipe.parent / place, options, *command.split(), "--json")
        hold(Answer(ended.returncode, ended.stdout, ended.stderr))
        if command == "build recipe.yaml" and place != "state":
            assert ended.returncode == 1, ended.stdout
