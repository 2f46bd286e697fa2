# SPDX-License-Identifier: Apache-2.0
"""Where the sources of an artifact lie on this machine.

A manifest says what was built, and equal inputs give equal manifests everywhere; so the directory that a source was
read from is remembered here, beside the store, by the keys of the artifact's steps. Nothing is lost when one moves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trtspec.core.files import replace_file
from trtspec.core.paths import cache_dir
from trtspec.store.checksummed_json import load_sealed, seal
from trtspec.store.digest import digest_of
from trtspec.store.manifest import Manifest

SCHEMA = "trtspec.origins/1"
MAX_DIRECTORIES = 16  # equal sources may lie in several places, and some of them be gone


def remember_origins(manifest: Manifest, sources: Mapping[str, str]) -> None:
    """Note that an artifact was built, just now, from these directories, {role: directory}."""
    if not sources:
        return
    path = _record_of(manifest)
    before = _directories(path)
    record = {
        role: list(dict.fromkeys([directory, *before.get(role, [])]))[:MAX_DIRECTORIES]
        for role, directory in sources.items()
    }
    with suppress(OSError):  # a full disk costs `verify --source`, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, seal(SCHEMA, record))


def recall_origin(manifest: Manifest, role: str) -> str | None:
    """Return a role's newest directory that is still there, else the newest; None where none is known."""
    directories = _directories(_record_of(manifest)).get(role, [])
    return next(filter(os.path.isdir, directories), next(iter(directories), None))


def _record_of(manifest: Manifest) -> Path:
    digest = digest_of(SCHEMA, tuple(step.key for step in manifest.steps))
    return cache_dir() / "origins" / f"{digest}.json"


def _directories(path: Path) -> dict[str, list[str]]:
    return load_sealed(SCHEMA, path) or {}
