# SPDX-License-Identifier: Apache-2.0
"""Parsing of engine versions, and selection of the nearest known version for an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
# Examples, normalized according to PEP 440: 1.4.0rc4, 0.5.16.post1, 1.3.0rc29.dev20260912
_VERSION = re.compile(r"(\d+(?:\.\d+)+)(?:rc(\d+))?(?:\.post(\d+))?(?:\.dev\d+)?")
_FINAL = 1 << 31  # sorts a final release after all its release candidates
VersionKey = tuple[tuple[int, ...], int, int]


def version_key(version: str) -> VersionKey | None:
    """Return the release, release candidate and post-release numbers as a sort key, or None for a malformed version."""
    if (found := _VERSION.fullmatch(version)) is None:
        return None
    release, candidate, post = found.groups()
    return tuple(map(int, release.split("."))), int(candidate or _FINAL), int(post or 0)


def nearest_version(version: str, known: Iterable[str]) -> str | None:
    """Return the known version that is the best stand-in for `version`, with the same major and minor numbers, or None.

    It is the newest known version that is not newer, else the oldest known version with the same release numbers. Older
    versions than these lack a stand-in, because features may be missing in them.
    """
    key = version_key(version)
    keys = {each: found for each in known if (found := version_key(each))}
    if key is None or len(key[0]) < 3:
        return None
    minor = sorted((each for each in keys if keys[each][0][:2] == key[0][:2]), key=lambda each: keys[each])
    earlier = [each for each in minor if keys[each] <= key]
    candidates = [each for each in minor if keys[each][0] == key[0]]
    return earlier[-1] if earlier else next(iter(candidates), None)


class KnownReleases(dict[str, T]):
    """Mapping from version to facts; a lookup falls back to `nearest_version` and raises KeyError without one."""

    def __missing__(self, version: str) -> T:
        nearest = nearest_version(version, self)
        if nearest is None:
            raise KeyError(version)
        return self[nearest]


def facts_by_release(document: Mapping[str, Any], facts: Iterable[str]) -> dict[str, dict[str, frozenset[str]]]:
    """Return the names of each fact by release, of a document with `sources` of releases and names by fact and range.

    The range "0.20.0..0.24.0" includes both ends, and "0.20.0.." extends to the newest release.
    """
    versions = list(document["sources"])
    found = {version: dict.fromkeys(facts, frozenset[str]()) for version in versions}
    for fact in found[versions[0]]:
        for span, names in (document.get(fact) or {}).items():
            first, last = span.split("..")
            for version in versions[versions.index(first) : versions.index(last) + 1 if last else None]:
                found[version][fact] |= frozenset(names)
    return found
