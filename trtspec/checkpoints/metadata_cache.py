# SPDX-License-Identifier: Apache-2.0
"""What is kept of hub models whose weights are not here: documents and headers, by id and commit.

    CACHE/previews/OWNER/NAME/COMMIT/
        preview.json      what files the hub has, and which of them are here in part; written last
        config.json ...   small files as they are; of large ones only their length
        *.safetensors     headers and tables of ids, which checks compare; else holes

A preview reads as the checkpoint does, so that every reader works unchanged; its weight files are `absent`, and
nothing may be computed from it. A commit names its files for ever, so nothing is locked: whoever writes a file writes
the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trtspec.checkpoints.hub_client import HubFile
from trtspec.checkpoints.source import MAX_INDEX_BYTES, Source, load_source, read_json
from trtspec.core.errors import CheckpointError
from trtspec.core.files import UNREAD, replace_file
from trtspec.core.paths import cache_dir
from trtspec.recipe.schema import COMMIT

MARKER, FORMAT = "preview.json", "trtspec.preview/1"
KEPT = 100  # previews, with those that were interrupted; the ones used least recently go


def previews_dir() -> Path:
    """Return where previews lie."""
    return cache_dir() / "previews"


def preview_dir(model: str, revision: str) -> Path:
    """Return where the preview of a commit lies, made or not."""
    return previews_dir() / model / revision


@dataclass(frozen=True)
class Preview:
    """A complete preview: `files` are the hub's by name, `parts` those of which not all bytes are here."""

    model: str
    revision: str
    files: dict[str, HubFile]
    parts: tuple[str, ...]

    @property
    def root(self) -> Path:
        """Return its directory."""
        return preview_dir(self.model, self.revision)

    def source(self) -> Source:
        """Return the model as it can be checked; raises CheckpointError where its files do not add up."""
        os.utime(self.root)
        source = load_source(self.root)
        return replace(source, absent={name: (UNREAD, self.files[name].nbytes, 0) for name in self.parts})

    def without_part(self, name: str) -> Preview:
        """Return it once a file is here as a whole."""
        return replace(self, parts=tuple(part for part in self.parts if part != name))

    def publish(self) -> None:
        """Write that it is complete."""
        document = json.dumps({"format": FORMAT, **asdict(self)})
        put(self.root / MARKER, document.encode())


def find_preview(root: Path) -> Preview | None:
    """Return the complete preview in a directory; None for another directory, or one whose files were cut off."""
    try:
        told = read_json(root / MARKER, MAX_INDEX_BYTES)
        if told.pop("format") != FORMAT:
            return None
        files = {name: HubFile(*each) for name, each in told["files"].items()}
        found = Preview(told["model"], told["revision"], files, tuple(told["parts"]))
        whole = all((root / name).stat().st_size == files[name].nbytes for name in found.parts)
    except (OSError, CheckpointError, KeyError, TypeError):
        return None
    return found if whole else None


def put(path: Path, data: bytes, nbytes: int | None = None) -> None:
    """Write a file whole or not at all: `data`, and holes up to `nbytes`."""
    replace_file(path, data, nbytes=nbytes or 0, durable=nbytes is None)


def make_root(model: str, revision: str) -> Path:
    """Return the directory for a preview, made where it is not there; only its owner may look into previews."""
    previews_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    root = preview_dir(model, revision)
    root.mkdir(parents=True, exist_ok=True)
    return root


def forget_old() -> None:
    """Delete the previews that were used least recently, beyond as many as are kept."""
    folders = (path for depth in ("*/*", "*/*/*") for path in previews_dir().glob(depth))
    found = [path for path in folders if re.fullmatch(COMMIT, path.name)]
    for root in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        (root / MARKER).unlink(missing_ok=True)  # it is no preview from its first missing file on
        shutil.rmtree(root, ignore_errors=True)


def named(text: str) -> str:
    """Return a text in which models have their ids instead of their previews' directories."""
    return re.sub(rf"{re.escape(str(previews_dir()))}/((?:[^/\s]+/)?[^/\s]+)/{COMMIT.strip('^$')}", r"\1", text)
