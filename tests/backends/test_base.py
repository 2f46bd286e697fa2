# SPDX-License-Identifier: Apache-2.0
"""The selection of a recipe's backend and version, and the GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtspec.backends import base
from trtspec.backends.base import backends, choose_backend, choose_version, stand_in_version
from trtspec.backends.common import trtllm_versions
from trtspec.backends.vllm.versions import releases as vllm_releases
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import GPUS, find_gpu
from trtspec.core.versions import version_key
from trtspec.recipe.schema import Engine


def chosen_for(backend: str, method: str, gpu: str | None) -> tuple[str, str]:
    choice = choose_backend(Engine(backend=backend, gpu=gpu), method)
    return choice.name, choice.why


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    """Return a function that simulates an installed version of TensorRT-LLM."""

    def installed(version: str) -> None:
        for module in (base, trtllm_versions):
            monkeypatch.setattr(module, "installed_version", lambda name: version if name == "tensorrt_llm" else "")

    return installed


# What a backend's default is the newest of; docs/recipe.md has these rules. Other packages' backends are not listed.
DEFAULTS = {
    "edge_llm": lambda version: True,
    "embedded": lambda version: True,
    "llmapi": lambda version: "rc" not in version,
    "sglang": lambda version: True,
    "tensorrt_llm": lambda version: True,
    "vllm": lambda version: bool(vllm_releases()[version].triton),
}


def test_every_backend_has_a_documented_default_version() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+|none) \| the ", text, re.MULTILINE))
    assert rows == {name: backend.versions()[-1] or "none" for name, backend in backends().items()}
    assert rows.keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_version_is_the_newest_that_the_backend_serves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "installed_version", lambda package: None)
    backend = backends()[name]
    allowed = [version for version in backend.versions() if DEFAULTS[name](version)]
    assert choose_version(backend, None) == max(allowed, key=lambda version: version_key(version) or ())


@pytest.mark.parametrize("name", DEFAULTS)
def test_installed_version_of_every_backend_precedes_its_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backends()[name]
    oldest = min(backend.versions(), key=lambda version: version_key(version) or ())
    monkeypatch.setattr(base, "installed_version", lambda package: oldest if package == backend.package else None)
    assert choose_version(backend, None) == oldest
    monkeypatch.setattr(base, "installed_version", lambda package: "0.0.1")  # not supported
    assert choose_version(backend, None) == backend.versions()[-1]


def test_backend_set_in_the_recipe_is_used() -> None:
    for name in backends():
        assert chosen_for(name, "none", None) == (name, "the recipe sets it")


def test_auto_backend_without_tensorrt_llm_is_embedded() -> None:
    assert chosen_for("auto", "medusa", "h200") == ("embedded", "TensorRT-LLM is not installed here")


@pytest.mark.parametrize(
    ("version", "method", "gpu", "chosen", "why"),
    [
        ("1.2.1", "medusa", "h200", "tensorrt_llm", "TensorRT-LLM 1.2.1 is installed"),
        ("1.2.1", "eagle3", "h200", "llmapi", "TensorRT-LLM 1.2.1 is installed"),
        ("1.3.0rc27", "draft_target", "h200", "llmapi", "TensorRT-LLM 1.3.0rc27 is installed"),
        (
            "1.3.0rc27",
            "medusa",
            "h200",
            "embedded",
            "TensorRT-LLM 1.3.0rc27 is installed, but does not support the method",
        ),
        ("1.2.1", "swift", "h200", "embedded", "TensorRT-LLM 1.2.1 is installed, but does not support the method"),
        (
            "1.2.1",
            "none",
            None,
            "embedded",
            "TensorRT-LLM is installed, but the recipe does not set engine.gpu",
        ),
    ],
)
def test_auto_backend_with_tensorrt_llm_depends_on_version_and_method(
    install, version: str, method: str, gpu: str | None, chosen: str, why: str
) -> None:
    install(version)
    assert chosen_for("auto", method, gpu) == (chosen, why)


@pytest.mark.parametrize(
    ("backend", "wanted", "got"),
    [
        ("tensorrt_llm", None, "1.2.1"),
        ("tensorrt_llm", "1.2.0", "1.2.0"),
        ("tensorrt_llm", "1.1", "1.1.0"),
        ("llmapi", "1.3", "1.3.0rc29"),
        ("embedded", None, ""),
    ],
)
def test_requested_version_selects_a_supported_version(backend: str, wanted: str | None, got: str) -> None:
    assert choose_version(backends()[backend], wanted) == got


@pytest.mark.parametrize(
    ("backend", "wanted", "planned_as"),
    [
        ("llmapi", "1.3.0rc28", "1.3.0rc27"),
        ("llmapi", "1.3.0rc22", "1.3.0rc27"),
        ("llmapi", "1.3.0", "1.3.0rc29"),
        ("llmapi", "1.3.1", "1.3.0rc29"),
        ("llmapi", "1.4.0rc0", "1.4.0rc1"),
        ("llmapi", "1.4.0rc4", "1.4.0rc1"),
        ("llmapi", "1.4.0", "1.4.0rc1"),
        ("sglang", "0.5.16.post1", "0.5.16"),
        ("sglang", "0.5.24", "0.5.23"),
        ("vllm", "0.33.1", "0.33.0"),
        ("edge_llm", "0.11.1", "0.11.0"),
    ],
)
def test_unknown_version_is_planned_as_the_nearest_of_its_minor(backend: str, wanted: str, planned_as: str) -> None:
    found = backends()[backend]
    assert choose_version(found, wanted) == wanted
    assert stand_in_version(found, wanted) == planned_as
    assert stand_in_version(found, planned_as) is None


def test_unknown_installed_version_of_a_known_minor_is_the_default(install) -> None:
    install("1.3.0rc28")
    assert choose_version(backends()["llmapi"], None) == "1.3.0rc28"
    install("1.5.0")
    assert choose_version(backends()["llmapi"], None) == "1.2.1"


def test_installed_version_is_the_default(install) -> None:
    install("1.2.0")
    assert choose_version(backends()["tensorrt_llm"], None) == "1.2.0"
    assert choose_version(backends()["tensorrt_llm"], "1.1") == "1.1.0"
    install("1.2.0rc8")  # an unsupported version
    assert choose_version(backends()["tensorrt_llm"], None) == "1.2.1"


@pytest.mark.parametrize(
    ("backend", "wanted", "said"),
    [
        ("tensorrt_llm", "1.3", "unsupported version 1.3\nhint: supported: 1.0.0, "),
        ("vllm", "9", "unsupported version 9"),
        ("vllm", "0.34.0", "unsupported version 0.34.0"),
        ("sglang", "0.5.1", "unsupported version 0.5.1"),
        ("llmapi", "1.5.0rc0", "unsupported version 1.5.0rc0"),
        ("tensorrt_llm", "1.2.2", "unsupported version 1.2.2"),
        ("embedded", "1.2", "this engine is part of trtspec and does not have a version\nhint: remove it"),
    ],
)
def test_unsupported_version_is_an_error(backend: str, wanted: str, said: str) -> None:
    with pytest.raises(TrtspecError) as caught:
        choose_version(backends()[backend], wanted)
    assert str(caught.value).startswith(said)


def test_gpu_lookup_ignores_case_and_rejects_unknown_gpus() -> None:
    assert find_gpu("H200").sm == 90
    assert {name for name, gpu in GPUS.items() if not gpu.has_fp8} == {
        *("v100", "t4", "a10", "a30", "a40", "a100-40gb", "a100-80gb", "rtx3090", "jetson-orin")
    }
    with pytest.raises(TrtspecError, match=r"(?s)unknown GPU 'h20o'.*did you mean 'h200'"):
        find_gpu("h20o")
