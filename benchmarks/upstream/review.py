# SPDX-License-Identifier: Apache-2.0
"""Read an engine's wheels, sources or published fields, and compare them with the package's facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.upstream.checkout import open_checkouts
from benchmarks.upstream.engines import UNKNOWN, Engine, Schema
from benchmarks.upstream.fetch import FetchError
from benchmarks.upstream.index import Index, IndexFile, pick_wheel
from benchmarks.upstream.strict import problems
from benchmarks.upstream.tables import Facts, differences
from benchmarks.upstream.wheel import RangeFile, Sources, open_remote

Documents = dict[str, dict[str, Any]]
TESTED = Path(__file__).parents[2] / "tests" / "engines"


@dataclass(frozen=True)
class ReadRelease:
    """The facts and the schema of one release, from the `members` of a wheel or other sources.

    `cost` is what was fetched of it, or where it was read. `released` is its date on the index, "" if unknown.
    """

    version: str
    facts: Facts
    schema: Schema
    wheel: str
    sha256: str
    members: tuple[str, ...]
    cost: str
    released: str = ""


@dataclass
class Review:
    """The result for one engine.

    Attributes:
        newest: newest version and a note, by package.
        reads: the releases that were read, oldest first.
        changes: by release, the known release it is compared with ("" for none), and new and removed names by fact.
        skipped: what could not be read, with the reason.
        problems: what the releases do not accept of emitted documents.
        documents: number of documents that were checked, by release.
    """

    engine: Engine
    newest: dict[str, str] = field(default_factory=dict)
    reads: list[ReadRelease] = field(default_factory=list)
    changes: dict[str, tuple[str, dict[str, tuple[list[str], list[str]]]]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    documents: dict[str, int] = field(default_factory=dict)

    def unreviewed(self, versions: Iterable[str]) -> list[str]:
        """Return the releases without a known one of the same minor version with the same methods and fields."""
        return [version for version in versions if not self._is_same(version)]

    def _is_same(self, version: str) -> bool:
        nearest, changed = self.changes[version]
        minors = [Version(each).release[:2] for each in (version, nearest) if each]
        return len(minors) == 2 and minors[0] == minors[1] and not changed.keys() & {self.engine.methods, "fields"}


def review(engine: Engine, index: Index, *, everything: bool = False) -> Review:
    """Return the review of an engine: of its newest release and those that are unknown, or of all since the first."""
    result = Review(engine)
    known = engine.known()
    listed = _list_packages(engine, index, result)
    readable = {version: file for version, files in listed.items() if (file := pick_wheel(files))}
    if listed and not readable and not engine.published:
        result.skipped.append(f"{engine.packages[0]}: no release has a wheel on this index, so nothing can be read")
    if not readable and engine.published:
        result.reads += _published(engine)
    for version, file in _chosen(readable, known, everything):
        try:
            result.reads.append(_read(engine, file, index))
        except FetchError as error:
            result.skipped.append(f"{engine.packages[0]} {version}: {error}")
    for each in result.reads:
        result.changes[each.version] = _compare(engine, each, known)
    return result


def review_sources(engine: Engine, root: Path) -> Review:
    """Return the review of an engine's sources in a directory: of each version tag since the first known release."""
    result = Review(engine)
    known = engine.known()
    try:
        checkouts = open_checkouts(root, engine.version_file)
    except FetchError as error:
        result.skipped.append(str(error))
        return result
    first = min(map(Version, known))
    for version, checkout in checkouts.items():
        if version >= first:
            try:
                result.reads.append(read_sources(engine, checkout))
            except FetchError as error:
                result.skipped.append(f"{engine.packages[0]} {version}: {error}")
    for each in result.reads:
        result.changes[each.version] = _compare(engine, each, known)
    return result


def _published(engine: Engine) -> list[ReadRelease]:
    """Return what is recorded of releases that cannot be read."""
    releases = engine.published() if engine.published else {}
    return [ReadRelease(v, each.facts(), each.schema, each.source, "", (), "recorded") for v, each in releases.items()]


def _list_packages(engine: Engine, index: Index, result: Review) -> dict[Version, list[IndexFile]]:
    found: dict[Version, list[IndexFile]] = {}
    for package in engine.packages:
        try:
            releases = index.releases(package)
        except FetchError as error:
            result.skipped.append(str(error))
            continue
        if not releases:
            result.skipped.append(f"{package}: the index lists no release")
            continue
        newest = max(releases)
        files = releases[newest]
        sizes = ", ".join(f"{file.name} ({file.size} bytes)" for file in files)
        result.newest[package] = str(newest) + ("" if pick_wheel(files) else f", without a wheel: only {sizes}")
        if package == engine.packages[0]:
            found = releases
    return found


def _chosen(
    readable: dict[Version, IndexFile], known: dict[str, Facts], everything: bool
) -> list[tuple[Version, IndexFile]]:
    """Return the releases to read, oldest first; candidates only of engines of which candidates are known."""
    versions = [Version(each) for each in known]
    candidates = any(version.is_prerelease for version in versions)
    found = [v for v in sorted(readable) if v >= min(versions) and (candidates or not v.is_prerelease)]
    return [(v, readable[v]) for v in found if everything or v not in versions or v == found[-1]]


def _read(engine: Engine, file: IndexFile, index: Index) -> ReadRelease:
    wheel = open_remote(file, index.fetcher)
    members = engine.members(wheel.names())
    wheel.prefetch(members)
    return replace(read_sources(engine, wheel), released=file.released)


def read_sources(engine: Engine, wheel: Sources) -> ReadRelease:
    """Return what an engine's reader finds in a wheel or another form of its sources.

    Raise FetchError if the sources have another structure.
    """
    try:
        facts, schema = engine.read(wheel), engine.schema(wheel)
    except (KeyError, StopIteration, AttributeError, IndexError, TypeError, ValueError) as error:
        raise FetchError(f"{wheel.name}: the sources are structured in an unknown way: {error!r}") from error
    if not facts[engine.methods] or not facts["fields"]:
        raise FetchError(f"{wheel.name}: no methods or no fields were found: the reader needs an update")
    cost, file = "", getattr(wheel, "file", None)
    if isinstance(file, RangeFile):
        cost = f"{file.fetched / 2**20:.1f} of {file.size / 2**20:.0f} MiB, {file.requests} requests"
    return ReadRelease(wheel.version, facts, schema, wheel.name, wheel.sha256, tuple(sorted(wheel.read_members)), cost)


def _compare(
    engine: Engine, read: ReadRelease, known: dict[str, Facts]
) -> tuple[str, dict[str, tuple[list[str], list[str]]]]:
    versions = sorted(known, key=Version)
    earlier = [version for version in versions if Version(version) <= Version(read.version)]
    if not earlier:
        return "", {}
    before = known[earlier[-1]]
    found = {fact: names - (engine.reviewed - before.get(fact, set())) for fact, names in read.facts.items()}
    return earlier[-1], differences(before, found)


def check_documents(result: Review, emit: Callable[[Engine, list[str]], dict[str, Documents]]) -> None:
    """Validate what is emitted for each recorded release, or for the newest release that was read.

    `emit` returns the documents for releases, by the recipe's name.
    """
    reads = result.reads if result.engine.published else result.reads[-1:]
    emitted = emit(result.engine, [read.version for read in reads]) if reads else {}
    for read in reads:
        result.documents[read.version] = len(emitted[read.version])
        for name, document in emitted[read.version].items():
            result.problems += [f"{name} {read.version}: {problem}" for problem in problems(document, read.schema)]


def pinned_versions() -> dict[str, str]:
    """Return the versions of packages in the environments of tests, which tests/engines lists."""
    lines = [line for path in TESTED.glob("*.txt") for line in path.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))


def explain(result: Review) -> list[str]:
    """Return the lines of the table for one engine."""
    tested = pinned_versions()
    lines = []
    for package, newest in result.newest.items():
        lines.append(f"{package}: newest {newest}" + (f", tested {tested[package]}" if package in tested else ""))
    known = result.engine.known()
    for read in result.reads:
        nearest, changed = result.changes[read.version]
        state = "known" if read.version in known else f"new, compared with {nearest or 'nothing'}"
        lines.append(f"  {read.version}: {state} ({read.wheel}, {read.cost or 'on disk'})")
        if read.sha256:
            lines.append(f"    sha256 {read.sha256}")
        lines += _explain_changes(read, changed)
    if result.reads and (unknown := result.reads[-1].facts.get(UNKNOWN)):
        lines.append(f"  not in the data, by the reader's rules: {', '.join(sorted(unknown))}")
    for version, number in result.documents.items():
        lines.append(f"  {number} emitted documents checked against {version}")
    lines += [f"  PROBLEM {problem}" for problem in result.problems]
    return lines + [f"  SKIPPED {reason}" for reason in result.skipped]


def _explain_changes(read: ReadRelease, changed: dict[str, tuple[list[str], list[str]]]) -> list[str]:
    if not changed:
        return ["    no difference"]
    fields = {name: each for section in read.schema.values() for name, each in section.items()}
    lines = []
    for fact, (new, gone) in changed.items():
        for sign, names in (("+", new), ("-", gone)):
            for name in names:
                each = fields.get(name.rpartition(".")[2]) if fact == "fields" and sign == "+" else None
                typed = f": {each.type}" + (f" = {each.default}" if each.default else "") if each else ""
                lines.append(f"    {fact:18} {sign} {name}{typed}")
    return lines
