# SPDX-License-Identifier: Apache-2.0
"""The code policy of artifacts: attacks on a built artifact, each with a manifest that matches the modified files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.serving.triton.artifact import records
from trtspec.backends.base import backends, find_backend
from trtspec.backends.code_policy import ALLOW, check_code, disallowed_code
from trtspec.core.errors import DigestMismatch, UntrustedCode
from trtspec.core.hashing import file_sha256
from trtspec.deployment.revision import stage_repository
from trtspec.store.artifact import load_artifact, load_manifest
from trtspec.store.artifact_paths import REPOSITORY

MODEL = f"{REPOSITORY}/postprocessing/1/model.py"
CONFIG = f"{REPOSITORY}/tensorrt_llm/config.pbtxt"
Attack = Callable[[Path], object]


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)


@pytest.fixture
def changed(artifact: Path, tmp_path: Path) -> Path:
    """A modifiable copy of an artifact."""
    copy = shutil.copytree(artifact, tmp_path / "changed")
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def record_again(artifact: Path) -> None:
    """Write a manifest that matches every file in the artifact."""
    manifest = load_manifest(artifact)
    (artifact / "manifest.json").write_bytes(manifest.model_copy(update={"files": records(artifact)}).render())


def put(artifact: Path, name: str, text: str) -> None:
    (artifact / name).parent.mkdir(parents=True, exist_ok=True)
    (artifact / name).write_text(text)


def append(artifact: Path, name: str, text: str) -> None:
    (artifact / name).write_text((artifact / name).read_text() + text)


def replace(artifact: Path, name: str, old: str, new: str) -> None:
    text = (artifact / name).read_text()
    assert old in text
    (artifact / name).write_text(text.replace(old, new))


UNLISTED = {
    "a version": (lambda root: put(root, f"{REPOSITORY}/postprocessing/2/model.py", ""), "postprocessing/2/model.py"),
    "a library": (lambda root: put(root, "plugins/x.so", ""), "plugins/x.so"),
    "a link": (lambda root: (root / "tokenizer" / "x").symlink_to("/etc/passwd"), "tokenizer/x"),
    "a folder that is a link": (lambda root: (root / REPOSITORY / "more").symlink_to("/tmp"), f"{REPOSITORY}/more"),
    "a module beside": (lambda root: put(root, f"{REPOSITORY}/tensorrt_llm/1/numpy.py", ""), "1/numpy.py"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "name"), UNLISTED.values(), ids=UNLISTED)
def test_file_not_listed_in_the_manifest_is_rejected(attack: Attack, name: str, changed: Path, trtspec: Run) -> None:
    attack(changed)
    for command, code in (("generate", 102), ("bench", 102), ("deploy", 102), ("verify", 110)):
        options = ["-p", "x"] if command == "generate" else []
        done = trtspec(command, changed, *options)
        assert done.code == code, (command, done.err)
        assert f"{name}: not listed in the manifest" in done.out + done.err, command


@pytest.mark.slow
def test_warm_up_data_is_allowed_but_code_next_to_it_is_not(changed: Path) -> None:
    put(changed, f"{REPOSITORY}/tensorrt_llm/warmup/1-texts-input_ids.int32", "1234")
    assert disallowed_code(changed, load_manifest(changed)) == []
    put(changed, f"{REPOSITORY}/tensorrt_llm/warmup/model.py", "x")
    assert "warmup/model.py: not code that this" in disallowed_code(changed, load_manifest(changed))[0]


@pytest.mark.slow
def test_reports_and_byte_code_are_not_staged(changed: Path, tmp_path: Path) -> None:
    put(changed, "reports/mine.json", "{}")
    put(changed, f"{REPOSITORY}/postprocessing/1/__pycache__/model.cpython-311.pyc", "planted")
    stage = tmp_path / "stage"
    repository = stage_repository(load_artifact(changed), find_backend("embedded").serving(), stage)
    assert not [*repository.rglob("__pycache__")]
    recorded = {record.path.split("/")[0] for record in load_manifest(changed).files}
    assert {path.name for path in stage.iterdir()} == recorded | {"manifest.json"}


RECORDED = {
    "an edited model": (lambda root: append(root, MODEL, "import os\n"), "not code that this trtspec emits"),
    "a version": (lambda root: put(root, f"{REPOSITORY}/postprocessing/2/model.py", "x"), "not code that this"),
    "a stub of its own": (
        lambda root: put(root, f"{REPOSITORY}/postprocessing/triton_python_backend_stub", "x"),
        "not code that this trtspec emits",
    ),
    "a backend's library": (
        lambda root: put(root, f"{REPOSITORY}/tensorrt_llm/1/libtriton_x.so", "x"),
        "not code that this trtspec emits",
    ),
    "a plugin": (lambda root: put(root, "plugins/x.so", "x"), "plugins/x.so: not a library that trtspec compiled here"),
    "an environment": (
        lambda root: append(
            root, CONFIG, 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/env.tar.gz" } }\n'
        ),
        "trtspec does not emit the parameter EXECUTION_ENV_PATH",
    ),
    "another backend": (lambda root: replace(root, CONFIG, 'backend: "python"', 'backend: "x"'), "for backend 'x'"),
    "another file": (
        lambda root: append(root, CONFIG, 'default_model_filename: "x.py"\n'),
        "trtspec does not emit models for backend 'python'",
    ),
    "a warm-up that reads elsewhere": (
        lambda root: append(
            root,
            CONFIG,
            'model_warmup { name: "x" inputs { key: "a" value { input_data_file: "../../../x" } } }\n',
        ),
        "its warm-up reads a file outside the model's directory",
    ),
    "a field of no model": (lambda root: append(root, CONFIG, "optimization { }\n"), "not a configuration of trtspec"),
    "weights elsewhere": (
        lambda root: replace(root, CONFIG, "../../checkpoints/target", "../../../checkpoints/target"),
        "gpt_model_path points outside the artifact",
    ),
    "a tokenizer elsewhere": (
        lambda root: replace(root, CONFIG, "../../tokenizer", "1/../../../../tokenizer"),
        "tokenizer_dir points outside the artifact",
    ),
    "an absolute path": (
        lambda root: replace(root, CONFIG, "../../checkpoints/target", "/checkpoints/target"),
        "gpt_model_path points outside the artifact",
    ),
    "arguments that run code": (
        lambda root: put(root, f"{REPOSITORY}/tensorrt_llm/1/model.json", '{"a": [{"trust_remote_code": true}]}'),
        "trust_remote_code can load other code",
    ),
    "arguments that nobody reads": (
        lambda root: put(root, f"{REPOSITORY}/tensorrt_llm/1/model.json", "{"),
        "cannot be read",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "said"), RECORDED.values(), ids=RECORDED)
def test_foreign_code_is_rejected_despite_a_matching_manifest(
    attack: Attack, said: str, changed: Path, tmp_path: Path
) -> None:
    attack(changed)
    record_again(changed)
    with pytest.raises(UntrustedCode) as caught:
        check_code(changed, load_manifest(changed))
    assert said in caught.value.message
    assert "--allow-code SHA256" in str(caught.value.hint)
    with pytest.raises(UntrustedCode):
        stage_repository(load_artifact(changed), find_backend("embedded").serving(), tmp_path / "stage")


@pytest.mark.slow
def test_commands_reject_foreign_code_unless_its_digest_is_allowed(
    changed: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(changed, MODEL, "# mine\n")
    record_again(changed)
    digest = file_sha256(changed / MODEL)
    for command, code in (("generate", 102), ("bench", 102), ("deploy", 102), ("verify", 110)):
        options = ["-p", "x"] if command == "generate" else []
        done = trtspec(command, changed, *options)
        assert done.code == code, (command, done.err)
        assert f"{MODEL}: not code that this trtspec emits (sha256 {digest})" in done.out + done.err
    monkeypatch.setenv(ALLOW, "")  # restored after the test, because the option changes it
    assert trtspec("generate", changed, "-p", "x", "--max-tokens", 1, "--allow-code", digest).code == 0
    monkeypatch.setenv(ALLOW, f"{'0' * 64}, {digest.upper()}")
    assert disallowed_code(changed, load_manifest(changed)) == []
    wrong = trtspec("generate", changed, "-p", "x", "--allow-code", "mine")
    assert (wrong.code, "'mine' is not a SHA-256 digest" in wrong.err) == (1, True)


@pytest.mark.slow
def test_locally_compiled_library_is_allowed(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(changed, "plugins/libtrtspec.so", "compiled")
    made = type("Built", (), {"path": changed / "plugins/libtrtspec.so"})
    monkeypatch.setattr("trtspec.kernels.build.list_libraries", lambda: [made])
    record_again(changed)
    assert disallowed_code(changed, load_manifest(changed)) == []


@pytest.mark.slow
def test_file_with_another_digest_than_the_manifest_is_not_staged(changed: Path, tmp_path: Path) -> None:
    replace(changed, CONFIG, "microseconds: 100", "microseconds: 101")
    with pytest.raises(DigestMismatch, match=r"tensorrt_llm/config\.pbtxt: bytes 0 to [0-9,]* differ"):
        stage_repository(load_artifact(changed), find_backend("embedded").serving(), tmp_path / "stage")


@pytest.mark.parametrize("name", sorted(backends()))
def test_backend_with_its_own_models_reports_their_directory(name: str) -> None:
    folder = Path(str(__import__(f"trtspec.backends.{name}", fromlist=["x"]).__file__)).with_name("models")
    assert find_backend(name).serving().models == (folder if folder.is_dir() else None)
