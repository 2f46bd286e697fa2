# SPDX-License-Identifier: Apache-2.0
"""`python -m docs.site`: build the site, or end with exit code 1 and a line for each problem."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from docs.site.links import broken_links
from docs.site.pages import ROOT, Pages, complete
from docs.site.reference import generated_pages

HERE = Path(__file__).parent
CONFIG = "mkdocs.yml"  # the name that Zensical expects of YAML


def main() -> int:
    """Build the site in a temporary folder and move it to --out if the build succeeds."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder of the site; it is replaced")
    out: Path = parser.parse_args().out
    if out.exists() and not (out / "404.html").is_file():
        parser.error(f"--out: {out} exists and has no site")
    with tempfile.TemporaryDirectory() as folder:
        problems = build(Path(folder))
        for problem in problems:
            sys.stderr.write(f"error: {problem}\n")
        if not problems:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(Path(folder) / "html", out)
            sys.stdout.write(f"{sum(1 for _ in out.rglob('*.html'))} pages in {out}\n")
    return 1 if problems else 0


def build(folder: Path) -> list[str]:
    """Write the pages and the configuration, and build folder/html; return the problems."""
    problems = write_pages(folder)
    if problems:
        return problems
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", CONFIG]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"zensical: {done.stdout}{done.stderr}"]
    return broken_links(folder / "html")


def write_pages(folder: Path) -> list[str]:
    """Write folder/pages and the completed configuration; return links in pages that lead nowhere."""
    config: dict[str, Any] = yaml.safe_load((HERE / "site.yaml").read_text(encoding="utf-8"))
    pages = Pages(folder / config["docs_dir"], generated_pages())
    config["nav"] = complete(config["nav"], pages)
    for name in (*config["extra_css"], *config["extra_javascript"]):
        shutil.copyfile(HERE / name, folder / config["docs_dir"] / name)
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return pages.problems


if __name__ == "__main__":
    sys.exit(main())
