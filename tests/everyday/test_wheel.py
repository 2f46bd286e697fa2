# SPDX-License-Identifier: Apache-2.0
"""Contents of the wheel, and execution of the documentation's commands without a clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests._support.pages import PAGES, ROOT, SHELLS, Block, blocks_of, run_block

pytestmark = [pytest.mark.integration]

SHIPPED = ("model_repository", "plugins", "recipes")
BUILT_FROM = ("trtspec", *SHIPPED, "pyproject.toml", "README.md", "LICENSE", ".gitignore")
IGNORED = Path("recipes/checkpoints")
CORE = (
    "typer", "rich", "pydantic", "pydantic_core", "yaml", "numpy", "numpy.libs", "google", "filelock", "blake3",
    "annotated_doc", "annotated_types", "click", "typing_extensions.py", "typing_inspection", "shellingham",
    "markdown_it", "mdurl", "pygments",
)  # fmt: skip
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def without_clone(page: str) -> list[Block]:
    """Return the blocks of a page that do not require a clone."""
    return [block for block in blocks_of(page, *SHELLS) if block.marker in ("", "wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built offline from a clone and a checkpoint ignored by git."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: make setup")
    clone = tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=_ignored)
        else:
            shutil.copy(ROOT / name, clone)
    (clone / "recipes" / "checkpoints").mkdir()
    (clone / "recipes" / "checkpoints" / "tried.safetensors").touch()
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist", "."]
    subprocess.run(command, cwd=clone, check=True, timeout=300)
    (made,) = (clone / "dist").glob("trtspec-*.whl")
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


def test_wheel_contains_the_same_files_as_a_clone(wheel: Path) -> None:
    """The wheel has every file below trtspec/ and the directories of paths.py, but no ignored files."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    served = {*re.findall(r'_shipped\("(\w+)"\)', (ROOT / "trtspec" / "core" / "paths.py").read_text())}
    assert served == {*SHIPPED}
    expected = {str(path) for path in files_below(ROOT / "trtspec", ROOT)}
    expected |= {f"trtspec/_data/{path}" for folder in SHIPPED for path in files_below(ROOT / folder, ROOT)}
    assert held == expected


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
