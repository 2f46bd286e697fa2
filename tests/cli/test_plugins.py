# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests._support.compiled import run_build
from tests.conftest import Run
from trtspec.kernels import build
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.host_kernels import CompiledArithmetic

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on the PATH")


@pytest.mark.slow
def test_plugins_can_be_built_tested_and_listed(workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_run", run_build)
    built = trtspec("plugins", "build", "--json")
    assert built.code == 0
    path = Path(built.document["path"])
    assert path.is_relative_to(workplace / "cache" / "plugins")
    assert (built.document["status"], built.document["architectures"]) == ("built", [])
    assert built.document["plugins"] == ["compact_kv", "quantize", "verify_block", "verify_chain", "verify_tree"]
    again = trtspec("plugins", "build")
    assert again.code == 0
    assert ": hit in 0." in again.out

    tested = trtspec("plugins", "test", "--json")
    assert tested.code == 0
    assert tested.document["ok"]
    names = [check["name"] for check in tested.document["checks"]]
    assert {name.partition(",")[0] for name in names} == {
        "verify_block",
        "verify_chain",
        "verify_tree",
        "compact_kv",
        "quantize",
    }
    assert tested.err == ""
    assert f"{len(names)} of {len(names)} checks passed" in trtspec("plugins", "test").out

    listed = trtspec("plugins", "list", "--json").document
    assert [plugin["name"] for plugin in listed["plugins"]] == [
        "compact_kv",
        "quantize",
        "verify_block",
        "verify_chain",
        "verify_tree",
    ]
    assert [library["path"] for library in listed["libraries"]] == [str(path)]


def test_wrong_kernel_result_fails_plugins_test(
    workplace: Path, kernel_library: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(kernel_library.parents[2]))

    def worse(self: KernelLibrary, right=KernelLibrary.verify_chain, **arrays: object) -> object:
        found = right(self, **arrays)
        return found._replace(next=found.next + 1)

    monkeypatch.setattr(KernelLibrary, "verify_chain", worse)
    tested = trtspec("plugins", "test", "--json")
    assert tested.code == 110
    failed = [check["name"] for check in tested.document["checks"] if not check["ok"]]
    assert {name.partition(",")[0] for name in failed} == {"verify_block", "verify_chain"}
    assert "verify_chain, deterministic, float32, vocabulary of 7: next: [" in trtspec("plugins", "test").out


def test_wrong_arithmetic_fails_plugins_test(
    workplace: Path, kernel_library: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(kernel_library.parents[2]))
    monkeypatch.setattr(CompiledArithmetic, "count", lambda self, bits, dtype: (0, 0, 0))
    tested = trtspec("plugins", "test", "--json")
    assert tested.code == 110
    failed = [check for check in tested.document["checks"] if not check["ok"]]
    assert {check["detail"] for check in failed} == {"count differs"}
    assert "quantize, portable, every pattern of BF16" in {check["name"] for check in failed}


def test_invalid_arguments_are_rejected(workplace: Path, trtspec: Run) -> None:
    assert "Invalid value for 'ACTION'" in trtspec("plugins", "bild").err
    refused = trtspec("plugins", "build", "--arch", "sm_1")
    assert refused.code == 1
    assert "nvcc" in refused.err
