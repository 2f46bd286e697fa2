# SPDX-License-Identifier: Apache-2.0
"""Record where the sources of an artifact are on this machine.

Equal inputs give equal manifests everywhere, so a manifest contains no locations. The directory of each source is
recorded next to the store, under the keys of the artifact's steps. Moving a source loses only this record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trtspec.core.files import replace_file
from trtspec.core.paths import cache_dir
from trtspec.store.checksummed_json import dump_checksummed, load_checksummed
from trtspec.store.digest import compute_digest
from trtspec.store.manifest import Manifest

SCHEMA = "trtspec.origins/1"
MAX_DIRECTORIES = 16  # equal sources may be in several directories, some of them deleted


def record_source_locations(manifest: Manifest, sources: Mapping[str, str]) -> None:
    """Record that an artifact was just built from these directories, {role: directory}."""
    if not sources:
        return
    path = _record_path(manifest)
    before = _directories(path)
    record = {
        role: list(dict.fromkeys([directory, *before.get(role, [])]))[:MAX_DIRECTORIES]
        for role, directory in sources.items()
    }
    with suppress(OSError):  # on a full disk only `verify --source` is affected
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_checksummed(SCHEMA, record))


def find_source_location(manifest: Manifest, role: str) -> str | None:
    """Return a role's newest existing directory, else its newest one, or None if none is recorded."""
    directories = _directories(_record_path(manifest)).get(role, [])
    return next(filter(os.path.isdir, directories), next(iter(directories), None))


def _record_path(manifest: Manifest) -> Path:
    digest = compute_digest(SCHEMA, tuple(step.key for step in manifest.steps))
    return cache_dir() / "origins" / f"{digest}.json"


def _directories(path: Path) -> dict[str, list[str]]:
    return load_checksummed(SCHEMA, path) or {}
