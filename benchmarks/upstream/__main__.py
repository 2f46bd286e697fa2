# SPDX-License-Identifier: Apache-2.0
"""`make upstream`: read the newest wheels of the engines, and compare them with the data and the emitted documents.

Exit status: 0; 1 if a release does not accept an emitted document; 2 with --strict if something could not be read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.upstream.engines import ENGINES, Engine
from benchmarks.upstream.index import Index, configured_index
from benchmarks.upstream.review import Review, check_documents, explain, review, review_sources
from trtspec.backends.base import choose_version, find_backend
from trtspec.core.errors import TrtspecError


def main(argv: list[str] | None = None, index: Index | None = None) -> int:
    """Review the engines, print the table, and return the exit status."""
    arguments = parse(argv)
    found = []
    for engine in ENGINES:
        if not arguments.packages or set(engine.packages) & set(arguments.packages):
            if arguments.source:
                result = review_sources(engine, arguments.source)
            else:
                index = index or configured_index()
                result = review(engine, index, everything=arguments.all)
            if not arguments.no_documents:
                check_documents(result, emit)
            print("\n".join(explain(result)), flush=True)
            if arguments.write:
                print("  " + write(result, reviewed=arguments.reviewed), flush=True)
            found.append(result)
    if any(result.problems for result in found):
        return 1
    return 2 if arguments.strict and any(result.skipped for result in found) else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=(__doc__ or "").split("\n")[0])
    packages = [package for engine in ENGINES for package in engine.packages]
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"default: all of {', '.join(packages)}")
    parser.add_argument("--source", type=Path, metavar="DIR", help="read a package's sources, at their version tags")
    parser.add_argument("--all", action="store_true", help="read all releases since the first known one")
    parser.add_argument("--write", action="store_true", help="add releases with known methods and fields to the data")
    parser.add_argument("--reviewed", action="store_true", help="with --write: also add or correct the others")
    parser.add_argument("--strict", action="store_true", help="exit with 2 if something could not be read")
    parser.add_argument("--no-documents", action="store_true", help="do not check emitted documents")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.packages) - set(packages):
        parser.error(f"unknown packages: {', '.join(sorted(unknown))}")
    if arguments.source and len(arguments.packages) != 1:
        parser.error("--source requires the name of one package")
    return arguments


def emit(engine: Engine, versions: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what trtspec emits for releases, by the recipe's name, for each recipe of the catalogue it can plan.

    The documents for an unknown minor version are those for the newest known release.
    """
    from tests._support.catalogue import contexts_of_releases, copy_catalogue

    planned = {version: _planned(engine, version) for version in versions}
    with tempfile.TemporaryDirectory() as folder:
        copy_catalogue(Path(folder))
        contexts = contexts_of_releases(Path(folder), engine.backend, planned.values(), engine.gpu)
        documents = {version: {k: engine.document(v) for k, v in found.items()} for version, found in contexts.items()}
    return {version: documents[each] for version, each in planned.items()}


def _planned(engine: Engine, version: str) -> str:
    try:
        return choose_version(find_backend(engine.backend), version)
    except TrtspecError:
        return max(engine.known(), key=Version)


def write(result: Review, *, reviewed: bool) -> str:
    """Add the releases that were read to the engine's data file, with their sources; return what was done."""
    table, path = result.engine.table(), result.engine.data[0] if result.engine.data else None
    if table is None or path is None:
        return "not written: the data of this engine is edited by hand (docs/extending.md)"
    held = [] if reviewed else result.unreviewed(each.version for each in result.reads)
    added = []
    for read in result.reads:
        if read.version not in held:
            table.facts[read.version] = {fact: read.facts[fact] for fact in next(iter(table.facts.values()))}
            dated = {"released": read.released} if read.released else {}
            table.sources[read.version] = {"wheel": read.wheel, "sha256": read.sha256, **dated}
            added.append(read.version)
    if added:
        path.write_text(table.render(), encoding="utf-8")
    review_first = f"; not {', '.join(held)}: read the table, then add --reviewed" if held else ""
    return f"written: {', '.join(added) or 'nothing'}{review_first}"


if __name__ == "__main__":
    sys.exit(main())
