# SPDX-License-Identifier: Apache-2.0
"""Builds that are repeated, changed, killed, out of space, damaged or concurrent: the next build succeeds."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests._support import forked
from tests.conftest import Run
from trtspec.core.files import failpoint
from trtspec.planning import pipeline
from trtspec.store.artifact import load_manifest, verify_files

pytestmark = pytest.mark.slow  # complete builds, many in processes that are killed

FAILPOINTS = (
    "journal.finished",
    "journal.committed",
    "store.before-entry",
    "store.before-rename",
    "store.after-rename",
    "publish.before-manifest",
    "publish.before-swap",
    "publish.after-swap",
)


@pytest.fixture(params=["read before", "read meanwhile"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash sources either before the build, as for small ones, or during conversion."""
    if request.param == "read meanwhile":
        monkeypatch.setattr(pipeline, "READ_WHILE_PLANNING", 0)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def check_sound(workplace: Path, trtspec: Run) -> None:
    """Check all files against the manifest, and check for leftovers of a killed build."""
    artifact = workplace / "build" / "tiny"
    manifest = load_manifest(artifact)
    assert verify_files(artifact, manifest) == []
    attested = ["attestations/bom.cdx.json", "attestations/provenance.json"]
    listed = [record.path for record in manifest.files]
    assert files_below(artifact) == sorted([*listed, "manifest.json", *attested])
    assert sorted(path.name for path in (workplace / "build").iterdir()) == [".tiny.lock", "tiny"]
    assert not any((workplace / "cache" / "store" / "tmp").iterdir())
    assert trtspec("cache", "--verify").code == 0


def flip(path: Path, offset: int = -5) -> None:
    """Change one byte without changing size or modification time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def statuses(trtspec: Run, recipe: Path, *arguments: object) -> dict[str, str]:
    done = trtspec("build", recipe, *arguments, "--json")
    assert done.code == 0, done.err
    return {step["name"]: step["status"] for step in done.document["steps"]}


@pytest.mark.usefixtures("reading")
def test_second_build_reports_nothing_to_do(recipe: Path, trtspec: Run) -> None:
    assert set(statuses(trtspec, recipe).values()) == {"built"}
    artifact = recipe.parent / "build" / "tiny"
    before = artifact.stat().st_ino, (artifact / "manifest.json").stat().st_mtime_ns
    again = trtspec("build", recipe, "--json")
    assert again.document["status"] == "unchanged"
    assert {step["status"] for step in again.document["steps"]} == {"hit"}
    assert "build/tiny: nothing to do (" in trtspec("build", recipe).out
    assert (artifact.stat().st_ino, (artifact / "manifest.json").stat().st_mtime_ns) == before
    check_sound(recipe.parent, trtspec)


def test_plan_reports_whether_a_build_is_needed(recipe: Path, trtspec: Run) -> None:
    planned = trtspec("plan", recipe, "--detailed-exitcode")
    assert planned.code == 2
    assert "never built" in planned.out
    assert not (recipe.parent / "build").exists()
    trtspec("build", recipe)
    planned = trtspec("plan", recipe, "--detailed-exitcode")
    assert planned.code == 0
    assert planned.out.endswith("nothing to do\n")
    assert trtspec("plan", recipe, "--set", "speculation.draft_len=2", "--detailed-exitcode").code == 2


def test_out_option_chooses_the_artifact_directory(recipe: Path, trtspec: Run) -> None:
    document = trtspec("build", recipe, "--out", "elsewhere/it", "--json").document
    assert document["artifact"] == "elsewhere/it"
    assert load_manifest(recipe.parent / "elsewhere" / "it").recipe.name == "tiny"
    assert not (recipe.parent / "build").exists()


def test_matrix_builds_every_cell(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + "matrix:\n  speculation.draft_len: [1, 2]\n")
    documents = trtspec("build", recipe, "--json").document["recipes"]
    assert len({document["artifact"] for document in documents}) == 2
    lens = [load_manifest(Path(document["artifact"])).recipe.speculation.draft_len for document in documents]
    assert lens == [1, 2]
    assert [step["status"] for step in documents[1]["steps"]] == ["hit", "hit", "hit", "hit", "built"]
    assert len(trtspec("plan", recipe, "--json").document["recipes"]) == 2
    refused = trtspec("build", recipe, "--out", "one")
    assert (refused.code, refused.err) == (
        1,
        "error: the recipe has 2 cells, but --out names one directory\n"
        "hint: omit --out, or select one cell with --variant\n",
    )


def test_set_override_rebuilds_only_the_affected_step(recipe: Path, trtspec: Run) -> None:
    trtspec("build", recipe)
    changed = statuses(trtspec, recipe, "--set", "speculation.draft_len=2")
    assert changed == {
        "convert-target": "hit",
        "convert-draft": "hit",
        "copy-tokenizer": "hit",
        "copy-prompts": "hit",
        "emit-repository": "built",
    }
    manifest = load_manifest(recipe.parent / "build" / "tiny")
    assert manifest.recipe.speculation.draft_len == 2


@pytest.mark.parametrize(("name", "change"), [("config.json", {"rms_norm_eps": 1e-4}), ("hf_quant_config.json", {})])
def test_json_file_beside_the_weights_is_part_of_the_source(
    name: str, change: dict[str, Any], recipe: Path, trtspec: Run
) -> None:
    statuses(trtspec, recipe)
    path = recipe.parent / "target" / name
    document = json.loads(path.read_text()) if path.exists() else {"producer": {"name": "modelopt"}, "quantization": {}}
    path.write_text(json.dumps(document | change))
    again = statuses(trtspec, recipe)
    copied = ["copy-tokenizer"] if name == "config.json" else []  # it defines end ids
    assert [step for step, status in again.items() if status == "built"] == ["convert-target", *copied]


def test_changed_source_is_rebuilt(recipe: Path, trtspec: Run) -> None:
    trtspec("build", recipe)
    artifact = recipe.parent / "build" / "tiny"
    before = (artifact / "checkpoints" / "draft" / "rank0.safetensors").read_bytes()
    flip(recipe.parent / "draft" / "model.safetensors")
    changed = statuses(trtspec, recipe)
    assert [name for name, status in changed.items() if status == "built"] == ["convert-draft"]
    assert (artifact / "checkpoints" / "draft" / "rank0.safetensors").read_bytes() != before
    check_sound(recipe.parent, trtspec)


def test_model_repository_sources_are_an_input(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from trtspec.core.paths import model_repository_dir

    statuses(trtspec, recipe)
    copy = tmp_path / "models"
    shutil.copytree(model_repository_dir(), copy)
    (copy / "postprocessing" / "1" / "model.py").write_text("# changed\n")
    monkeypatch.setattr("trtspec.backends.common.steps.model_repository_dir", lambda: copy)
    changed = statuses(trtspec, recipe)
    assert [name for name, status in changed.items() if status == "built"] == ["emit-repository"]


def swap_while_converting(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], object]) -> None:
    """Modify the source after its tensors were read."""
    from trtspec.backends.common import convert

    write = convert.convert_checkpoint

    def write_and_swap(*arguments: Any, **options: Any) -> dict[str, str]:
        digests = write(*arguments, **options)
        swap()
        return digests

    monkeypatch.setattr(convert, "convert_checkpoint", write_and_swap)


@pytest.mark.parametrize("how", ["another", "gone"])
@pytest.mark.usefixtures("reading")
def test_source_changed_during_the_build_is_an_error(
    how: str, recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = recipe.parent / "target" / "model.safetensors"
    kept = weights.read_bytes()
    with monkeypatch.context() as patch:
        swap_while_converting(patch, weights.unlink if how == "gone" else lambda: weights.write_bytes(kept))
        failed = trtspec("build", recipe)
    assert (failed.code, failed.err) == (
        100,
        f"error: {weights}: the file changed during the build\nhint: build again\n",
    )
    assert not (recipe.parent / "build").exists()
    assert trtspec("cache", "--json").document["entries"] == []
    weights.write_bytes(kept)
    assert set(statuses(trtspec, recipe).values()) == {"built"}
    check_sound(recipe.parent, trtspec)


def start(recipe: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trtspec", "build", str(recipe)]
    return forked.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def nothing_partial(workplace: Path) -> None:
    """Check that another process sees either a complete artifact or none."""
    artifact = workplace / "build" / "tiny"
    if artifact.exists():
        assert verify_files(artifact, load_manifest(artifact)) == []


@pytest.mark.parametrize("point", FAILPOINTS)
@pytest.mark.usefixtures("reading")
def test_build_killed_at_a_failpoint_succeeds_next_time(point: str, recipe: Path, trtspec: Run) -> None:
    with start(recipe, TRTSPEC_FAILPOINT=point) as process:
        assert process.wait(30) == -signal.SIGKILL
    nothing_partial(recipe.parent)
    assert (recipe.parent / "build" / "tiny").exists() == (point == "publish.after-swap")
    assert trtspec("build", recipe).code == 0
    check_sound(recipe.parent, trtspec)


@pytest.mark.parametrize("point", ["store.before-delete", "publish.before-swap", "publish.after-swap"])
@pytest.mark.usefixtures("reading")
def test_build_killed_while_replacing_succeeds_next_time(point: str, recipe: Path, trtspec: Run) -> None:
    trtspec("build", recipe)
    if point == "store.before-delete":  # only a damaged entry is deleted
        flip(recipe.parent / "build" / "tiny" / "checkpoints" / "draft" / "rank0.safetensors")
    flip(recipe.parent / "target" / "model.safetensors")
    with start(recipe, TRTSPEC_FAILPOINT=point) as process:
        assert process.wait(30) == -signal.SIGKILL
    assert load_manifest(recipe.parent / "build" / "tiny").recipe.name == "tiny"
    assert trtspec("build", recipe).code == 0
    check_sound(recipe.parent, trtspec)


def test_failpoint_list_is_complete() -> None:
    import trtspec

    source = "".join(path.read_text() for path in Path(trtspec.__file__).parent.rglob("*.py"))
    named = {part.split('"')[0] for part in source.split(f'{failpoint.__name__}("')[1:]}
    other_tests = {"publish.between-renames", "store.before-delete", "store.received", "team.before-publish"}
    assert named - other_tests == set(FAILPOINTS)


@pytest.mark.usefixtures("reading")
def test_builds_killed_at_random_times_leave_no_partial_artifact(recipe: Path, trtspec: Run) -> None:
    chance = random.Random(20261120)
    for _ in range(6):
        with start(recipe) as process:
            time.sleep(chance.uniform(0.0, 0.4))  # a fork starts immediately
            process.kill()
        nothing_partial(recipe.parent)
    assert trtspec("build", recipe).code == 0
    check_sound(recipe.parent, trtspec)


@pytest.mark.usefixtures("reading")
def test_concurrent_builds_build_each_step_once(recipe: Path, trtspec: Run) -> None:
    processes = [start(recipe), start(recipe)]
    while any(process.poll() is None for process in processes):
        nothing_partial(recipe.parent)
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for name in ("convert-target", "convert-draft", "emit-repository"):
        assert sum(f"{name:<20} built" in each for each in said) == 1, said
    check_sound(recipe.parent, trtspec)


def test_interrupted_build_leaves_no_files(recipe: Path, trtspec: Run) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(recipe)]
    with forked.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "converting\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.endswith("interrupted\n")
    assert not (recipe.parent / "build").exists()
    assert not any((recipe.parent / "cache" / "store" / "tmp").iterdir())


INTERRUPTED = """
import sys, time
from trtspec.cli.app import main
from trtspec.backends.common import convert
def wait(*_, **__):
    print("converting", flush=True)
    time.sleep(30)
convert.convert_checkpoint = wait
main(["build", sys.argv[1]])
"""


def test_flipped_byte_is_detected_and_rebuilt(recipe: Path, trtspec: Run) -> None:
    trtspec("build", recipe)
    artifact = recipe.parent / "build" / "tiny"
    damaged = artifact / "checkpoints" / "target" / "rank0.safetensors"
    good = damaged.read_bytes()
    differs = f"bytes 0 to {len(good) - 1:,} differ"
    assert damaged.stat().st_nlink == 2  # the store and the artifact share the file
    flip(damaged)

    verified = trtspec("cache", "--verify", "--json")
    assert verified.code == 102
    assert verified.document["ok"] is False
    (problem,) = verified.document["problems"]
    assert problem.endswith(f": files/rank0.safetensors: {differs}")
    assert verified.err == ""
    assert "the next build recreates them" in trtspec("cache", "--verify").out

    broken = trtspec("generate", artifact, "-p", "the")
    assert (broken.code, broken.err) == (
        102,
        f"error: {artifact}: checkpoints/target/rank0.safetensors: {differs}\nhint: build it again\n",
    )
    verified = trtspec("verify", artifact, "--json")
    assert verified.code == 110
    (check,) = verified.document["checks"]
    assert (check["name"], check["ok"]) == ("files", False)
    assert check["detail"] == f"checkpoints/target/rank0.safetensors: {differs}"
    refused = trtspec("deploy", artifact)
    assert refused.code == 102
    assert f"checkpoints/target/rank0.safetensors: {differs}" in refused.err

    planned = {step["name"]: step["why"] for step in trtspec("plan", recipe, "--json").document["steps"]}
    assert planned["convert-target"] == f"corrupt: files/rank0.safetensors: {differs}"
    assert statuses(trtspec, recipe)["convert-target"] == "built"
    assert damaged.read_bytes() == good
    shutil.rmtree(artifact / "reports")
    check_sound(recipe.parent, trtspec)


def test_cleared_store_leaves_artifacts_intact(recipe: Path, trtspec: Run) -> None:
    trtspec("build", recipe)
    cleared = trtspec("cache", "--clear", "--json").document
    assert cleared["entries"] == []
    assert len(cleared["removed"]) == 5
    artifact = recipe.parent / "build" / "tiny"
    assert verify_files(artifact, load_manifest(artifact)) == []


FULL_DISK = """
import json, os, sys, tempfile
from trtspec.store import plan as room
from trtspec.cli.app import main
disk, recipe = sys.argv[1:]
os.chdir(disk)
def trtspec(*arguments, surprised=False):
    with tempfile.TemporaryFile("w+") as said:
        if not (child := os.fork()):
            os.dup2(said.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if surprised:
                room.DiskNeed.is_met = True
            try:
                main(arguments)
            except SystemExit as ended:
                sys.stderr.flush()
                os._exit(ended.code or 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read()
ballast = open("ballast", "wb")
ballast.truncate()
free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
os.posix_fallocate(ballast.fileno(), 0, free - int(os.environ["LEAVE"]))
failed = trtspec("build", recipe, surprised=True)  # appears to have enough space at the start
verified = trtspec("cache", "--verify")
left = [str(path) for path in ("build/tiny",) if os.path.exists(path)]
os.unlink("ballast"); ballast.close()
print(json.dumps([failed, verified, left, trtspec("build", recipe), trtspec("cache", "--verify")]))
"""


def mounted(directory: Path, *command: str) -> list[str]:
    """Return a command line that mounts a file system of 4 MiB at `directory` and runs a command."""
    mount = 'mount -t tmpfs -o size=4m none "$1" && shift && exec "$@"'
    return ["unshare", "-rm", "sh", "-c", mount, "sh", str(directory), *command]


@pytest.mark.parametrize("leave", [16 << 10, 100 << 10, 380 << 10, 430 << 10])
def test_full_disk_fails_the_build_without_leftovers(leave: int, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = recipe.parent / "disk"
    disk.mkdir()
    try:
        allowed = subprocess.run(mounted(disk, "true"), capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare command on this machine")
    if allowed.returncode:
        pytest.skip(f"no file system can be mounted here: {allowed.stderr.strip()}")
    monkeypatch.setenv("TRTSPEC_CACHE", str(disk / "cache"))
    monkeypatch.setenv("LEAVE", str(leave))
    command = mounted(disk, sys.executable, "-c", FULL_DISK, str(disk), str(recipe))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (code, said), (verified, _), left, (again, _), (at_last, _) = json.loads(done.stdout)
    assert code == 100, said
    assert "Traceback" not in said
    assert "no space left on" in said.lower()
    assert "hint: " in said
    assert (verified, left) == (0, [])
    assert (again, at_last) == (0, 0)


@pytest.mark.usefixtures("reading")
def test_until_leaves_the_named_steps_in_the_store_and_publishes_nothing(recipe: Path, trtspec: Run) -> None:
    partial = trtspec("build", recipe, "--until", "convert", "--json")
    assert partial.code == 0, partial.err
    document = partial.document
    assert {step["name"]: step["status"] for step in document["steps"]} == {
        "convert-target": "built",
        "convert-draft": "built",
    }
    assert (document["status"], document["artifact"], document["manifest"]) == ("partial", None, None)
    assert document["remaining"] == ["copy-tokenizer", "copy-prompts", "emit-repository"]
    assert not (recipe.parent / "build").exists()
    rest = statuses(trtspec, recipe)
    assert [name for name, status in rest.items() if status == "hit"] == ["convert-target", "convert-draft"]
    check_sound(recipe.parent, trtspec)


def test_until_accepts_one_step_and_reports_what_is_left(recipe: Path, trtspec: Run) -> None:
    shown = trtspec("build", recipe, "--until", "convert-draft").out
    assert re.fullmatch(
        r"tiny: convert-draft: in the store \([\d.]+ s\)\n"
        r"remaining: convert-target, copy-tokenizer, copy-prompts, emit-repository\n",
        shown,
    )
    whole = trtspec("build", recipe, "--until", "emit-repository", "--json").document
    assert [step["name"] for step in whole["steps"]] == ["emit-repository"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--until", "convert-traget"), "--until convert-traget: no such step\nhint: did you mean 'convert-target'?"),
        (("--until", "nothing", "--json"), "no such step"),
        (("--until", "convert", "--out", "x"), "--until writes no artifact\nhint: omit --out"),
    ],
)
def test_until_refuses_unknown_steps_and_an_output_directory(
    options: tuple[str, ...], error: str, recipe: Path, trtspec: Run
) -> None:
    refused = trtspec("build", recipe, *options)
    assert refused.code == 1
    assert error in refused.err + refused.out
    assert not (recipe.parent / "build").exists()


def test_until_requires_only_the_tools_of_its_steps(recipe: Path, trtspec: Run) -> None:
    engines = ("--set", "engine.backend=tensorrt_llm", "--set", "engine.gpu=h100", "--set", "target.dtype=float16")
    engines += ("--set", "speculation.draft.dtype=float16")
    whole = trtspec("build", recipe, *engines)
    assert whole.code == 1
    assert "cannot build engines" in whole.err
    half = trtspec("build", recipe, *engines, "--until", "convert", "--json")
    assert half.code == 0, half.err
    assert {"build-target", "build-draft"} <= {*half.document["remaining"]}
    assert "cannot build engines" in trtspec("build", recipe, *engines, "--until", "build").err
