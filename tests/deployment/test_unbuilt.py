# SPDX-License-Identifier: Apache-2.0
"""`deploy RECIPE --render`: the files of an artifact before it is built, compared with those of the artifact."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests._support.tiny import make_llama
from tests.conftest import Run
from tests.deployment.manifests import IMAGE
from trtspec.core.hashing import file_sha256
from trtspec.deployment.unbuilt import UNBUILT
from trtspec.store import files as files_module

KUBERNETES = ("--target", "kubernetes", "--target-option", "artifact=pvc:models/quickstart")
WAYS = {
    "docker": ("--target", "docker", "--image", IMAGE),
    "dockerfile": ("--target", "docker"),
    "options": ("--target", "docker", "--image", IMAGE, "--name", "other", "--http-port", "1234", "--drain", "90"),
    "kubernetes": (*KUBERNETES, "--image", IMAGE),
    "replicas": (*KUBERNETES, "--image", IMAGE, "--target-option", "replicas=3", "--skip-gate", "min_speedup"),
}


def texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def without_comment(text: str) -> str:
    lines = text.splitlines(keepends=True)
    marked = lines[0].startswith("# Not built yet: replace DIGEST-OF-THE-MANIFEST by the digest that `trtspec build`")
    return "".join(lines[2:] if marked else lines)


@pytest.fixture
def unreadable_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the content of a source fails; headers are read elsewhere."""

    def refuse(*_: object) -> None:
        raise AssertionError("a source was read")

    monkeypatch.setattr(files_module, "file_digests", refuse)
    monkeypatch.setattr(files_module, "digest_and_sha256", refuse)


@pytest.mark.parametrize("way", WAYS)
def test_files_of_the_quickstart_differ_from_its_artifacts_in_the_digest_only(
    way: str, workplace: Path, trtspec: Run
) -> None:
    before = trtspec("deploy", "quickstart", "--render", "before", *WAYS[way])
    assert before.code == 0, before.err
    assert trtspec("build", "quickstart").code == 0
    after = trtspec("deploy", "build/quickstart", "--render", "after", *WAYS[way])
    assert before.out.replace("before", "after") == after.out
    planned, built = texts(workplace / "before"), texts(workplace / "after")
    digest = file_sha256(workplace / "build/quickstart/manifest.json")
    marked = [path for path, text in planned.items() if UNBUILT in text]
    assert marked == [path for path, text in built.items() if digest in text]
    assert bool(marked) == (way != "dockerfile")
    for path, text in planned.items():
        assert without_comment(text).replace(UNBUILT, digest) == built[path]
        assert text == built[path] or path in marked
        if path.endswith(".yaml"):
            assert list(yaml.safe_load_all(text))


def test_recipe_is_rendered_without_reading_weights(unreadable_weights: None, recipe: Path, trtspec: Run) -> None:
    done = trtspec("deploy", recipe, "--target", "docker", "--image", IMAGE, "--render", "out", "--json")
    assert done.code == 0, done.err
    assert done.document["files"] == ["Dockerfile", "compose.yaml"]
    assert not (recipe.parent / "build").exists()


def test_known_digest_leaves_nothing_to_replace(recipe: Path, trtspec: Run) -> None:
    digest = "sha256:" + "b" * 64
    words = ("--target", "docker", "--image", IMAGE, "--manifest", digest)
    assert trtspec("deploy", recipe, "--render", "out", *words).code == 0
    text = (recipe.parent / "out" / "compose.yaml").read_text()
    assert f"--manifest={digest}" in text
    assert UNBUILT not in text


def test_container_with_the_placeholder_refuses_to_serve(artifact: Path, trtspec: Run) -> None:
    refused = trtspec("deploy", artifact, "--manifest", f"sha256:{UNBUILT}")
    assert refused.code == 1
    assert "expected sha256: and 64 hex digits" in refused.err


def test_second_rendering_replaces_the_first(recipe: Path, trtspec: Run) -> None:
    words = ("--target", "docker", "--image", IMAGE, "--render", "out")
    for _ in range(2):
        assert trtspec("deploy", recipe, *words).code == 0
    assert trtspec("build", recipe).code == 0
    assert trtspec("deploy", "build/tiny", *words).code == 0
    assert UNBUILT not in (recipe.parent / "out" / "compose.yaml").read_text()


def test_engine_that_cannot_be_built_here_is_rendered_with_its_gpus(recipe: Path, trtspec: Run) -> None:
    text = recipe.read_text().replace("engine:\n", "engine:\n  backend: tensorrt_llm\n  gpu: h200\n")
    recipe.write_text(text)
    assert trtspec("deploy", recipe, "--target", "docker", "--image", IMAGE, "--render", "out").code == 0
    service = yaml.safe_load((recipe.parent / "out" / "compose.yaml").read_text())["services"]["server"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["0"]
    assert f"--manifest=sha256:{UNBUILT}" in service["command"]


@pytest.mark.parametrize("form", ["kserve", "dynamo"])
def test_engine_without_triton_is_rendered_from_a_recipe(form: str, recipe: Path, trtspec: Run) -> None:
    engine = "engine:\n  backend: vllm\n  gpu: h200\n"
    text = recipe.read_text().replace("engine:\n", engine).replace("method: draft_target", "method: ngram")
    draft = text[text.index("  draft:") : text.index("engine:")]
    recipe.write_text(text.replace(draft, ""))
    words = (*KUBERNETES, "--image", IMAGE, "--target-option", f"form={form}")
    before = trtspec("deploy", recipe, *words, "--render", "before")
    assert before.code == 0, before.err
    assert trtspec("build", recipe).code == 0
    assert trtspec("deploy", "build/tiny", *words, "--render", "after").code == 0
    assert texts(recipe.parent / "before") == texts(recipe.parent / "after")


def test_recipe_without_render_is_refused_with_the_ways_to_go_on(recipe: Path, trtspec: Run) -> None:
    for words in ((), ("--systemd",), ("--target", "docker", "--image", IMAGE)):
        refused = trtspec("deploy", "recipe.yaml", *words)
        assert refused.code == 1
        assert "recipe.yaml is a recipe, not an artifact" in refused.err
        assert "trtspec build recipe.yaml, then trtspec deploy build/NAME" in refused.err


def test_systemd_unit_is_printed_for_an_artifact_that_does_not_exist_yet(workplace: Path, trtspec: Run) -> None:
    unit = trtspec("deploy", "build/later", "--systemd")
    assert unit.code == 0
    assert f"deploy {workplace}/build/later --host 127.0.0.1" in unit.out


def test_local_target_renders_no_recipe(recipe: Path, trtspec: Run) -> None:
    refused = trtspec("deploy", recipe, "--render", "out")
    assert refused.code == 1
    assert "target local does not support --render" in refused.err


def test_invalid_recipe_is_reported_with_its_position(recipe: Path, trtspec: Run) -> None:
    recipe.write_text(recipe.read_text() + "nonsense: 1\n")
    refused = trtspec("deploy", recipe, "--target", "docker", "--image", IMAGE, "--render", "out")
    assert refused.code == 1
    assert "unknown key 'nonsense'" in refused.err
    assert not Path("out").exists()


def test_directory_is_an_artifact_even_if_a_recipe_has_its_name(workplace: Path, trtspec: Run) -> None:
    make_llama(workplace / "quickstart")
    refused = trtspec("deploy", "quickstart", "--target", "docker", "--image", IMAGE, "--render", "out")
    assert "not an artifact: manifest.json is missing" in refused.err
    shutil.rmtree(workplace / "quickstart")
