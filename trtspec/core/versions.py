# SPDX-License-Identifier: Apache-2.0
"""Versions of engines: which known one is nearest to a version that is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
# 1.4.0rc4, 0.5.16.post1 and 1.3.0rc29.dev20260912, as PEP 440 normalises them
_VERSION = re.compile(r"(\d+(?:\.\d+)+)(?:rc(\d+))?(?:\.post(\d+))?(?:\.dev\d+)?")
_FINAL = 1 << 31  # after all candidates
VersionKey = tuple[tuple[int, ...], int, int]


def version_key(version: str) -> VersionKey | None:
    """Return the numbers of the release, of the candidate and of the post-release; None if it is not a version."""
    if (found := _VERSION.fullmatch(version)) is None:
        return None
    release, candidate, post = found.groups()
    return tuple(map(int, release.split("."))), int(candidate or _FINAL), int(post or 0)


def nearest_version(version: str, known: Iterable[str]) -> str | None:
    """Return the known version of the same minor whose facts apply best to an unknown one; None without one.

    It is the newest that is not newer, or the oldest candidate of the same release. Versions before all known ones of
    their minor lack one, because features may be missing there.
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
    """Facts by version; a lookup of an unknown version returns the nearest known one's (`nearest_version`)."""

    def __missing__(self, version: str) -> T:
        nearest = nearest_version(version, self)
        if nearest is None:
            raise KeyError(version)
        return self[nearest]
