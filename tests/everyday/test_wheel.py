# SPDX-License-Identifier: Apache-2.0
"""The wheel: its contents, its compiled kernels, and the documentation's commands without a clone."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests._support.pages import PAGES, ROOT, SHELLS, Block, blocks_of, run_block
from trtspec import __version__

pytestmark = [pytest.mark.integration]

SHIPPED = ("model_repository", "plugins", "recipes")
BUILT_FROM = ("trtspec", *SHIPPED, "pyproject.toml", "README.md", "LICENSE", ".gitignore")
IGNORED = Path("recipes/checkpoints")
KERNELS = ("trtspec/_data/kernels/libtrtspec.so", "trtspec/_data/kernels/library.json")
NEWEST_GLIBC = (2, 28)  # of manylinux_2_28, for which wheels are released
QUICKSTART_S = 180
CORE = (
    "typer", "rich", "pydantic", "pydantic_core", "yaml", "numpy", "numpy.libs", "google", "filelock", "blake3",
    "annotated_doc", "annotated_types", "click", "typing_extensions.py", "typing_inspection", "shellingham",
    "markdown_it", "mdurl", "pygments", "markdown_it_py", "protobuf", "pyyaml", "PyYAML", "typing_extensions",
)  # fmt: skip
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def without_clone(page: str) -> list[Block]:
    """Return the blocks of a page that do not require a clone."""
    return [block for block in blocks_of(page, *SHELLS) if block.marker in ("", "wheel")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source distribution of a clone with a checkpoint ignored by git."""
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed: make setup")
    clone = tmp_path_factory.mktemp("clone")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=_ignored)
        else:
            shutil.copy(ROOT / name, clone)
    (clone / "recipes" / "checkpoints").mkdir()
    (clone / "recipes" / "checkpoints" / "tried.safetensors").touch()
    build = "from scikit_build_core.build import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, timeout=300)
    shutil.unpack_archive(clone / "dist" / f"trtspec-{__version__}.tar.gz", clone / "dist", filter="data")
    return clone / "dist" / f"trtspec-{__version__}"


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built offline from the source distribution."""
    for program in ("cmake", "g++"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on the PATH")
    return build_wheel(sources, tmp_path_factory.mktemp("wheel"))


def build_wheel(sources: Path, out: Path, **environment: str) -> Path:
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, "."]
    subprocess.run(command, cwd=sources, check=True, timeout=600, env={**os.environ, **environment})
    (made,) = out.glob("trtspec-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and access to the packages of this one."""
    environment = make_environment(wheel, tmp_path_factory.mktemp("installed"))
    site_packages(environment).joinpath("others.pth").write_text(f"{site_packages(Path(sys.prefix))}\n")
    return environment


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its dependencies without extras."""
    environment = make_environment(wheel, tmp_path_factory.mktemp("bare"))
    here, there = site_packages(environment), site_packages(Path(sys.prefix))
    names = {*CORE, *(path.name for name in CORE for path in there.glob(f"{name}-*.dist-info"))}
    for name in names:
        if (there / name).exists():
            (here / name).symlink_to(there / name)
    return environment


def make_environment(wheel: Path, directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=300)
    install = [*PIP, "--python", directory / "bin" / "python", "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=300)
    return directory


def site_packages(environment: Path) -> Path:
    (site,) = environment.glob("lib/python*/site-packages")
    return site


def variables(environment: Path, work: Path) -> dict[str, str]:
    """Return the environment of an offline shell with trtspec's directories below `work`."""
    return {
        "HOME": str(work),
        "PATH": os.pathsep.join([str(environment / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
        "TRTSPEC_CACHE": str(work / "cache"),
        "TRTSPEC_STATE": str(work / "state"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_trtspec(environment: Path, work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command, without a compiler, in a directory that also has its store."""
    alone = {**variables(environment, work), "PATH": str(environment / "bin")}
    return subprocess.run(
        [environment / "bin" / "trtspec", *words], cwd=work, env=alone, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip


def test_wheel_contains_the_same_files_as_a_clone(wheel: Path) -> None:
    """The wheel has every file below trtspec/, the directories of paths.py and kernels, but no ignored files."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    served = {*re.findall(r'_shipped\("(\w+)"\)', (ROOT / "trtspec" / "core" / "paths.py").read_text())}
    assert served == {*SHIPPED}
    expected = {str(path) for path in files_below(ROOT / "trtspec", ROOT)}
    expected |= {f"trtspec/_data/{path}" for folder in SHIPPED for path in files_below(ROOT / folder, ROOT)}
    assert held == {*expected, *KERNELS}


def test_wheel_is_for_its_platform_and_every_python(wheel: Path) -> None:
    assert wheel.name == f"trtspec-{__version__}-py3-none-linux_{platform.machine()}.whl"


def test_library_of_the_wheel_runs_on_every_system_that_manylinux_names(wheel: Path) -> None:
    """auditwheel, which names released wheels, finds no library and no version of glibc that a system may lack."""
    pytest.importorskip("auditwheel", reason="auditwheel is not installed: make setup")
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    glibc = re.search(r'platform tag: "manylinux_(\d+)_(\d+)_\w+"', " ".join(shown.split()))
    assert glibc is not None, shown
    assert (int(glibc[1]), int(glibc[2])) <= NEWEST_GLIBC
    assert "requires no external shared libraries" in shown


def test_wheel_built_without_a_compiler_lacks_only_the_library(wheel: Path, sources: Path, tmp_path: Path) -> None:
    plain = build_wheel(sources, tmp_path, CXX=shutil.which("false") or "")
    assert plain.name == f"trtspec-{__version__}-py3-none-any.whl"
    missing = {*zipfile.ZipFile(wheel).namelist()} ^ {*zipfile.ZipFile(plain).namelist()}
    assert missing == {*KERNELS}


def test_released_wheels_are_not_built_without_a_compiler(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build_wheel(sources, tmp_path, CXX=shutil.which("false") or "", CIBUILDWHEEL="1")


def test_small_conversion_uses_the_library_of_the_wheel_without_a_compiler(bare: Path, tmp_path: Path) -> None:
    library = site_packages(bare) / KERNELS[0]
    findings = json.loads(run_trtspec(bare, tmp_path, "doctor", "--json").stdout)["findings"]
    details = {each["name"]: each["detail"] for each in findings}
    assert details["conversions"] == details["kernels"] == f"{library}, from the wheel"
    built = run_trtspec(bare, tmp_path, "-v", "build", "quickstart")
    assert built.returncode == 0, built.stderr
    assert f"converting weights with {library} (" in built.stderr
    assert not (tmp_path / "cache" / "plugins").exists()


def test_library_of_the_wheel_passes_its_self_test(installed: Path, tmp_path: Path) -> None:
    """Every kernel returns what its reference in numpy does, bit for bit."""
    document = json.loads(run_trtspec(installed, tmp_path, "plugins", "test", "--json").stdout)
    assert document["path"] == str(site_packages(installed) / KERNELS[0])
    assert document["ok"], document


def test_wheel_and_its_dependencies_pass_pip_check(bare: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", bare / "bin" / "python", "check"],
        env=variables(bare, tmp_path), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_quickstart_runs_from_the_wheel_within_three_minutes(installed: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    for command in (
        "check quickstart",
        "build quickstart",
        "verify build/quickstart",
        "generate build/quickstart -p x",
    ):
        done = run_trtspec(installed, tmp_path, *command.split())
        assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - started < QUICKSTART_S


def _ignored(folder: str, names: list[str]) -> set[str]:
    kept_out = {name for name in names if name == "__pycache__" or name.endswith(".pyc")}
    return kept_out | ({IGNORED.name} & {*names} if Path(folder) == ROOT / IGNORED.parent else set())


def files_below(folder: Path, root: Path) -> list[Path]:
    found = [path.relative_to(root) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return [path for path in found if "__pycache__" not in path.parts and IGNORED not in path.parents]


def test_data_paths_used_by_the_code_exist_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    """All `MODELS`, `DATA` and `VERSIONS` paths of modules and all paths of paths.py exist in the wheel."""
    script = """
import importlib
from pathlib import Path
from trtspec.core import paths
places = [paths.recipes_dir(), paths.plugins_dir(), paths.model_repository_dir(), paths.default_prompts(),
          paths.calibration_prompts()]
for module in sorted(paths.PACKAGE.rglob("*.py")):
    if "(__file__)" in module.read_text() and "_data" not in module.parts:
        dotted = ".".join(module.relative_to(paths.PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        named = vars(importlib.import_module(dotted))
        places += [each for each in named.values() if isinstance(each, Path) and each.is_absolute()]
for place in {*places}:
    print(place, place.exists())
"""
    python = installed / "bin" / "python"
    run = subprocess.run(
        [python, "-c", script], cwd=tmp_path, env=variables(installed, tmp_path), capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) >= 9
    assert [line for line in lines if not (line.startswith(str(installed)) and line.endswith(" True"))] == []


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory with a store that all pages share."""
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("page", [page for page in PAGES if without_clone(page)])
def test_page_blocks_run_from_the_wheel(page: str, installed: Path, work: Path, tmp_path: Path) -> None:
    """Run all blocks that do not require a clone."""
    for block in without_clone(page):
        run_block(block, tmp_path, variables(installed, work))


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("check quickstart", ""),
        ("build quickstart", ""),
        ("compare quickstart quickstart-ngram", ""),
        ("init {models}/quickstart-target --name mine", ""),
        ("migrate quickstart --to 1.2 --output moved.yaml", ""),
        ("generate build/quickstart -p x", "embedded"),
        ("build quickstart-fp8", "embedded"),
        ("build mistral-7b-ngram", "hub"),
        ("init org/name", "hub"),
    ],
)
def test_command_without_its_extra_fails_with_an_install_hint(
    command: str, extra: str, bare: Path, tmp_path: Path
) -> None:
    """Each extra installs the packages listed in docs/install.md."""
    models = site_packages(bare) / "trtspec" / "_data" / "recipes" / "models"
    run = subprocess.run(
        [bare / "bin" / "trtspec", *command.format(models=models).split()], cwd=tmp_path, capture_output=True,
        text=True, env=variables(bare, tmp_path), check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == (1 if extra else 0), run.stderr
    assert not extra or f"hint: pip install 'trtspec[{extra}]'" in run.stderr
