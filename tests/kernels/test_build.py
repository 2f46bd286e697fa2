# SPDX-License-Identifier: Apache-2.0
"""Libraries are compiled once for equal inputs and published atomically, and compiler errors are readable."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from tests._support.durability import synced  # noqa: F401
from trtspec.core.errors import StepError, StepTimeout, TrtspecError
from trtspec.core.paths import plugins_dir
from trtspec.kernels import build
from trtspec.kernels.build import (
    LIBRARY,
    BuiltLibrary,
    Toolchain,
    build_library,
    code_flags,
    discover_plugins,
    find_libraries,
    gpu_architecture,
    list_libraries,
    plan_library,
    probe_toolchain,
)
from trtspec.store.digest import dump_checksummed

MANIFEST = (
    "name: {name}\nsummary: Says a number\nsources: {{host: [cpu.cpp], cuda: [kernel.cu]}}\narchitectures: [sm_80]\n"
)
HEADER = "inline int number() { return 42; }\n"
SOURCE = """
#include "common/number.h"
extern "C" __attribute__((visibility("default"))) int {name}() {{ return number(); }}
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on the PATH")


@pytest.fixture
def sources(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two plugins that compile quickly."""
    folder = workplace / "plugins"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "plugin.yaml").write_text(MANIFEST.format(name=name))
        (folder / name / "cpu.cpp").write_text(SOURCE.format(name=name))
        (folder / name / "kernel.cu").write_text("")
    (folder / "common").mkdir()
    for source in ("abi.cpp", "no_cuda.cpp"):
        (folder / "common" / source).write_text("")
    (folder / "common" / "number.h").write_text(HEADER)
    monkeypatch.setattr(build, "plugins_dir", lambda: folder)
    return folder


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The compiler's source files, recorded as it runs."""
    runs: list[str] = []

    def run(command: tuple[str, ...], timeout_s: float, go_on=build._run) -> None:
        runs.append(command[-1])
        go_on(command, timeout_s)

    monkeypatch.setattr(build, "_run", run)
    return runs


def test_library_is_compiled_once(sources: Path, compiled: list[str]) -> None:
    path = build_library(plan_library())
    assert len(compiled) == 5  # four sources and the library
    assert ctypes.CDLL(str(path)).two() == 42
    assert build_library(plan_library()) == path
    assert len(compiled) == 5


@pytest.mark.parametrize("change", ["common/number.h", "one/cpu.cpp", "common/abi.cpp", "two/kernel.cu"])
def test_changed_source_changes_the_library_key(sources: Path, change: str) -> None:
    before = plan_library().key
    (sources / change).write_text((sources / change).read_text() + "\n")
    assert plan_library().key != before


def test_library_key_depends_on_all_inputs_but_not_on_the_compiler_path(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = plan_library()
    key = spec.key
    moved = replace(spec, toolchain=replace(spec.toolchain, cxx="/elsewhere/g++"))
    assert moved.key == spec.key
    other = [
        replace(spec, plugins=("one",)),
        replace(spec, architectures=("sm_80",)),
        replace(spec, toolchain=replace(spec.toolchain, cxx_version="g++ 99")),
        replace(spec, toolchain=replace(spec.toolchain, machine="aarch64")),
    ]
    assert len({key, *(each.key for each in other)}) == 5
    monkeypatch.setattr(build, "FLAGS", ("-O0",))
    assert spec.key != key


def test_library_is_synced_to_disk_before_it_is_published(sources: Path, synced: list[str]) -> None:  # noqa: F811
    path = build_library(plan_library())
    moved = synced.index("rename")
    assert [Path(each).name for each in synced[:moved]] == [LIBRARY, "library.json", "made"]
    assert synced[moved + 1] == str(path.parent.parent)


@pytest.mark.parametrize("left", [b"", bytes(1000)])
def test_library_damaged_by_power_loss_is_rebuilt(sources: Path, compiled: list[str], left: bytes) -> None:
    path = build_library(plan_library())
    path.unlink()
    path.write_bytes(left)
    assert build_library(plan_library()) == path
    assert len(compiled) == 10
    assert ctypes.CDLL(str(path)).two() == 42
    assert [each.name for each in path.parents[1].iterdir() if each.is_dir()] == [path.parent.name]


def test_concurrent_builds_compile_once(sources: Path, compiled: list[str]) -> None:
    spec = plan_library()
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(build_library, [spec] * 4))) == 1
    assert len(compiled) == 5


@pytest.mark.slow
def test_compiler_timeout_is_an_error_and_leaves_no_library(
    sources: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = workplace / "g++"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    spec = plan_library()
    spec = replace(spec, toolchain=replace(spec.toolchain, cxx=str(slow)))
    with pytest.raises(StepTimeout, match="did not finish within 0 s"):
        build_library(spec, timeout_s=0.1)
    assert list_libraries() == []
    assert [path.suffix for path in build._libraries().iterdir()] == [".lock"]


def test_waiting_for_another_process_times_out(sources: Path) -> None:
    spec = plan_library()
    build._libraries().mkdir(parents=True)
    with (
        FileLock(build._libraries() / f"{spec.key}.lock"),
        pytest.raises(StepTimeout, match="another process has been building this library for 0 s"),
    ):
        build_library(spec, timeout_s=0.1)


def test_compiler_error_is_reported_with_its_line_and_leaves_no_library(sources: Path) -> None:
    source = sources / "one" / "cpu.cpp"
    source.write_text("int fine;\nint wrong = missing;\nint more = lost;\n")
    with pytest.raises(StepError) as raised:
        build_library(plan_library())
    assert raised.value.where == f"{source}:2"
    assert raised.value.message == "'missing' was not declared in this scope\n  2 | int wrong = missing;"
    assert str(raised.value.hint).startswith("for the full output, run: ")
    assert f"-c {source}" in str(raised.value.hint)
    assert list_libraries() == []
    assert [path.suffix for path in build._libraries().iterdir()] == [".lock"]


def test_compiler_warning_does_not_fail_the_build(sources: Path) -> None:
    """Other compilers have other warnings; our own tests compile with -Werror."""
    (sources / "one" / "cpu.cpp").write_text("static int unused;\n")
    assert build_library(plan_library()).exists()


def test_nvcc_errors_are_parsed(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("a\nb\nwrong\n")
    for output in (
        f'{source}(3): error: identifier "x" is undefined',
        f'{source}(3): error #20-D: identifier "x" is un',
    ):
        error = build._first_error(("nvcc",), f"warning before\n{output}\nand more\n")
        assert error.where == f"{source}:3"
        assert error.message.endswith("\n  3 | wrong")
    fatal = build._first_error(("nvcc",), "nvcc fatal   : Unsupported gpu architecture 'compute_1'\n")
    assert fatal.message == "nvcc failed:\nnvcc fatal   : Unsupported gpu architecture 'compute_1'"


def test_find_libraries_returns_libraries_with_the_plugins_for_this_machine(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_libraries() == []
    one = build_library(plan_library(("one",)))
    assert find_libraries(("one",)) == [one]
    assert find_libraries(("one", "two")) == []
    both = build_library(plan_library())
    assert find_libraries() == [both]
    assert sorted(find_libraries(("one",))) == sorted(each.path for each in list_libraries()) == sorted([one, both])
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert find_libraries() == []


def test_library_for_the_most_gpus_is_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, machine = build._digest_sources(build._digest_files()), platform.machine()
    made = [
        BuiltLibrary(Path(str(count)), build.discover_plugins(), ["sm_90a"] * count, sources, machine, [])
        for count in (0, 2, 1)
    ]
    monkeypatch.setattr(build, "list_libraries", lambda: made)
    assert find_libraries() == [Path("2"), Path("1"), Path("0")]


def test_library_of_other_sources_is_not_found(sources: Path) -> None:
    build_library(plan_library())
    (sources / "common" / "number.h").write_text("inline int number() { return 43; }\n")
    assert find_libraries() == []


def test_library_of_other_flags_is_not_found(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_library(plan_library())
    monkeypatch.setattr(build, "FLAGS", ("-Ofast",))
    assert find_libraries() == []


@pytest.fixture
def wheel(sources: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of a wheel that was built from the sources."""
    path = build_library(plan_library())
    folder = path.parent.rename(workplace / "wheel")
    monkeypatch.setattr(build, "wheel_kernels_dir", lambda: folder)
    document = {"library": {**plan_library().describe()["library"], "sources": build._digest_files()}}
    (folder / "library.json").write_bytes(dump_checksummed(build.SCHEMA, document))
    return folder / LIBRARY


def test_library_of_the_wheel_is_found_before_those_of_the_cache(wheel: Path, compiled: list[str]) -> None:
    assert find_libraries() == [wheel]
    assert build.describe_library(wheel) == f"{wheel}, from the wheel"
    cached = build_library(plan_library())
    assert find_libraries() == [wheel, cached]
    assert build.describe_library(cached) == f"{cached}, compiled on this machine"


@pytest.mark.parametrize("change", ["common/number.h", "one/plugin.yaml"])
def test_library_of_a_wheel_with_other_sources_is_not_found(wheel: Path, sources: Path, change: str) -> None:
    (sources / change).write_text((sources / change).read_text() + "\n")
    assert find_libraries() == []
    assert [each.path for each in list_libraries()] == [wheel]


def test_digest_of_files_is_the_one_of_sha256sum(sources: Path) -> None:
    """plugins/cmake/wheel.cmake computes the same."""
    shell = "find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["bash", "-c", shell], cwd=sources, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[0] == build._digest_files()


def test_library_with_damaged_description_is_not_listed(sources: Path) -> None:
    path = build_library(plan_library())
    path.with_name("library.json").write_text("{}")
    assert list_libraries() == []


def test_unknown_plugin_is_rejected_with_a_suggestion(sources: Path) -> None:
    with pytest.raises(TrtspecError, match="unknown plugin 'tow'; available: one, two") as raised:
        plan_library(("tow",))
    assert raised.value.hint == "did you mean 'two'?"


def test_plugin_with_a_name_other_than_its_folder_is_rejected(sources: Path) -> None:
    (sources / "one" / "plugin.yaml").write_text(MANIFEST.format(name="other"))
    with pytest.raises(TrtspecError, match="the name 'other' differs from its folder's"):
        discover_plugins()


def test_missing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TrtspecError, match=r"no C\+\+ compiler on the PATH \(g\+\+ or clang\+\+\)"):
        probe_toolchain()


def test_missing_nvcc_is_an_error_only_for_gpu_architectures(monkeypatch: pytest.MonkeyPatch, sources: Path) -> None:
    monkeypatch.setattr(build, "NVCC", ())
    assert plan_library().toolchain.nvcc_version == ""
    with pytest.raises(TrtspecError, match="nvcc, which compiles for GPUs, was not found"):
        plan_library(architectures=("sm_90a",))


def test_unsupported_architecture_is_rejected(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho sm_80\necho sm_90\n")
    nvcc.chmod(0o755)
    compilers = Toolchain("x86_64", "g++ 12", "13.0", "g++", str(nvcc))
    compilers.check_architectures(("sm_80", "sm_90a"))
    with pytest.raises(TrtspecError, match="nvcc does not support 'sm_91'; supported: sm_80, sm_90"):
        compilers.check_architectures(("sm_91",))


def test_gpu_architectures_give_their_nvcc_flags() -> None:
    assert [gpu_architecture(sm) for sm in (80, 89, 90, 100, 120)] == ["sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"]
    assert code_flags(("sm_80", "sm_90a")) == (
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_80,code=compute_80",
    )
    assert code_flags(("sm_90a",)) == ("-gencode=arch=compute_90a,code=sm_90a",)


def test_gpu_and_cpu_sources_are_compiled_without_contraction() -> None:
    compilers = Toolchain("x86_64", "g++ 12", "13.0", "/usr/bin/g++", "/usr/bin/nvcc")
    command = compilers.compile_command("a/kernel.cu", "a.o", ("plugins",), ("sm_80",))
    assert command[0] == "/usr/bin/nvcc"
    assert {"--fmad=false", "-ccbin=/usr/bin/g++", "-Iplugins"} <= set(command)
    host = compilers.compile_command("a/cpu.cpp", "a.o", (), ("sm_80",))
    assert {"-ffp-contract=off", "-march=x86-64-v3"} <= set(host)
    wide = compilers.compile_command("a/avx512.cpp", "a.o", (), ())
    assert {"-ffp-contract=off", "-march=x86-64-v4"} <= set(wide)
    assert not any("fast-math" in flag for flag in (*command, *host, *wide))
    assert compilers.link_command(("a.o",), LIBRARY)[0] == "/usr/bin/nvcc"
    assert compilers.for_cpus().link_command(("a.o",), LIBRARY)[0] == "/usr/bin/g++"
    grace = replace(compilers, machine="aarch64").compile_command("a/cpu.cpp", "a.o", (), ())
    assert not any(flag.startswith("-march") for flag in grace)


def test_all_shipped_plugins_are_discovered() -> None:
    known = ["compact_kv", "quantize", "verify_block", "verify_chain", "verify_tree"]
    assert list(discover_plugins()) == known


def test_cmake_has_the_same_sources_and_flags() -> None:
    """CMakeLists.txt has the same sources, and the same flags that affect results."""
    text = (plugins_dir() / "CMakeLists.txt").read_text()
    named = set(re.findall(r"\b[\w/]+/(?:abi\.cpp|no_cuda\.cpp|cpu\.cpp|avx512\.cpp|kernel\.cu)", text))
    paths = [path for plugin in discover_plugins().values() for path in plugin.paths(("sm_80",), "x86_64")]
    assert named == {*build.COMMON_SOURCES, *build.WITHOUT_CUDA, *paths}
    processors = (*build.X86_FLAGS, *build.AVX512_FLAGS)
    for flag in ("-ffp-contract=off", "--fmad=false", "-fno-trapping-math", *processors):
        assert flag in text
