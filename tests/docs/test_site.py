# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds strictly, its links resolve, and its reference has everything that the code has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site.links import broken_links
from docs.site.pages import DOCS, ROOT, Pages, complete
from docs.site.reference import generated_pages
from trtspec.cli.app import INTERNAL_ERROR, INTERRUPTED, make_command
from trtspec.core import errors
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover
from trtspec.methods.base import ATTRIBUTE, PACKAGE
from trtspec.planning import documents
from trtspec.recipe.validate import recipe_keys
from trtspec.serving.gateway import metrics as gateway_metrics
from trtspec.serving.triton.python_models.metrics import FAMILIES

pytest.importorskip("zensical", reason="no Zensical here: it needs Python 3.11")
pytestmark = pytest.mark.slow

NAVIGATION = yaml.safe_load((ROOT / "docs" / "site" / "site.yaml").read_text(encoding="utf-8"))["nav"]
REFERENCE = generated_pages()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    out = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "docs.site", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return out


def text_of(page: Path) -> str:
    """Return the text of a built page without markup."""
    return unescape(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))


def test_site_has_every_page_of_the_documentation(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    generated = {Path(name).with_suffix(".html") for name in REFERENCE}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert {*pages, *generated, Path("overview.html")} <= built


def listed(entries: list[Any]) -> Iterator[str]:
    """Yield the paths in a navigation."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            (below,) = entry.values()
            yield from listed([below] if isinstance(below, str) else below)


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {*pages, *REFERENCE} - {*listed(NAVIGATION)} == set()


def test_links_of_the_site_resolve(site: Path) -> None:
    assert broken_links(site) == []


def test_broken_link_anchor_and_foreign_script_are_found(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    page = tmp_path / "site" / "advise.html"
    added = '<a href="gone.html"></a><a href="recipe.html#gone"></a><script src="https://cdn.example/x.js"></script>'
    page.write_text(page.read_text(encoding="utf-8") + added, encoding="utf-8")
    assert broken_links(tmp_path / "site") == [
        "advise.html: loads https://cdn.example/x.js from another host",
        "advise.html: gone.html does not exist",
        "advise.html: recipe.html#gone leads to a missing section",
    ]


def test_link_to_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {"reference/x.md": "[gone](../gone.md) [there](../recipe.md)\n"})
    assert complete([{"Reference": ["reference/x.md"]}], pages) == [{"Reference": ["reference/x.md"]}]
    assert pages.problems == [f"{DOCS}reference/x.md: the link ../gone.md leads nowhere"]
    assert (tmp_path / "recipe.md").is_file()


def test_missing_page_of_the_navigation_is_a_problem(tmp_path: Path) -> None:
    pages = Pages(tmp_path, {})
    assert complete([{"How-to": ["how-to/gone.md", "recipe.md"]}], pages) == [{"How-to": ["recipe.md"]}]
    assert pages.problems == ["docs/site/site.yaml: the page docs/how-to/gone.md does not exist"]


def test_folder_without_a_site_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    command = [sys.executable, "-m", "docs.site", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "exists and has no site" in done.stderr) == (2, True)
    assert (tmp_path / "kept").exists()


def test_commands_reference_has_every_command_and_option(site: Path) -> None:
    page = site / "reference" / "commands.html"
    html, text = page.read_text(encoding="utf-8"), text_of(page)
    for name, command in make_command().commands.items():
        assert f'id="{name}"' in html
        section = re.split(rf"trtspec {name} \[OPTIONS\]", text)[1].partition("[OPTIONS]")[0]
        for parameter in command.params:
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or ""
            assert parameter.hidden or shown in section, (name, shown)


def test_recipe_reference_has_every_key_and_option_of_methods() -> None:
    page = REFERENCE["reference/recipe-keys.md"]
    for key, description in recipe_keys().items():
        assert f"| `{key}` |" in page, key
        assert re.split("[|*<]", description)[0] in page or key in ("extends", "matrix")
    for name, method in discover(PACKAGE, ATTRIBUTE).items():
        section = page.split(f"\n### {name}\n")[1].partition("\n### ")[0]
        assert all(f"`speculation.options.{option}`" in section for option in method.options.model_fields)


def test_json_reference_has_every_field_of_every_document() -> None:
    page = REFERENCE["reference/json.md"]
    models = [
        each for each in vars(documents).values() if isinstance(each, type) and each.__module__ == documents.__name__
    ]
    assert len(models) > 20
    for model in models:
        name, is_document, _ = model.__name__.partition("Document")
        section = re.split(r"\n##+ ", page.split(f" {name}{' document' if is_document else ''}\n")[1])[0]
        assert all(f"| `{field}` |" in section for field in model.model_fields), model


def test_exit_code_reference_has_every_code_and_error() -> None:
    listed = re.findall(r"^\| (\d+) \| (.*?) \|", REFERENCE["reference/exit-codes.md"], re.MULTILINE)
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TrtspecError)]
    assert {(str(kind.exit_code), f"`{kind.__name__}`") for kind in kinds} <= {*listed}
    assert {"0", "2", str(INTERNAL_ERROR), str(INTERRUPTED)} <= {code for code, _ in listed}


def test_metrics_and_tensors_are_those_of_the_code() -> None:
    metrics, tensors = (REFERENCE[f"reference/{name}.md"] for name in ("metrics", "tensors"))
    assert all(f"| `{family.name}` | {family.kind} |" in metrics for family in FAMILIES)
    assert all(f"| `{family.name}` | {family.kind} |" in metrics for family in gateway_metrics.FAMILIES)
    assert "| `text_input` | STRING | `[1]` | yes |" in tensors
    assert "| `text_output` | STRING | `[-1]` |" in tensors
