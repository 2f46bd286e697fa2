# SPDX-License-Identifier: Apache-2.0
"""Cache of previews: documents and headers of hub models whose weights are not downloaded, by id and commit.

    CACHE/previews/OWNER/NAME/COMMIT/
        preview.json      the hub's file list, and the files that are partial here; written last
        config.json ...   complete small files; of large files only the length
        *.safetensors     headers and tables of ids, which checks compare; the rest are holes

A preview has the layout of the checkpoint, so every reader works unchanged. Its weight files are `absent` and nothing
may be computed from it. The content of a commit never changes, so no lock is needed: concurrent writers write the same
bytes.
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
MAX_PREVIEWS = 100  # previews, including incomplete ones; the least recently used are deleted


def previews_dir() -> Path:
    """Return the root folder of the previews."""
    return cache_dir() / "previews"


def preview_dir(model: str, revision: str) -> Path:
    """Return the folder of a commit's preview, which need not exist."""
    return previews_dir() / model / revision


@dataclass(frozen=True)
class Preview:
    """A complete preview: `files` are the hub's files by name, `parts` the names of partial files."""

    model: str
    revision: str
    files: dict[str, HubFile]
    parts: tuple[str, ...]

    @property
    def root(self) -> Path:
        return preview_dir(self.model, self.revision)

    def source(self) -> Source:
        """Return the model as a source for checks; raise CheckpointError if its files are inconsistent."""
        os.utime(self.root)
        source = load_source(self.root)
        return replace(source, absent={name: (UNREAD, self.files[name].nbytes, 0) for name in self.parts})

    def without_part(self, name: str) -> Preview:
        """Return the preview after a file has been completed."""
        return replace(self, parts=tuple(part for part in self.parts if part != name))

    def publish(self) -> None:
        """Write the marker of a complete preview."""
        document = json.dumps({"format": FORMAT, **asdict(self)})
        write_preview_file(self.root / MARKER, document.encode())


def find_preview(root: Path) -> Preview | None:
    """Return the complete preview in a directory, or None if it is missing or truncated."""
    try:
        document = read_json(root / MARKER, MAX_INDEX_BYTES)
        if document.pop("format") != FORMAT:
            return None
        files = {name: HubFile(*each) for name, each in document["files"].items()}
        found = Preview(document["model"], document["revision"], files, tuple(document["parts"]))
        is_complete = all((root / name).stat().st_size == files[name].nbytes for name in found.parts)
    except (OSError, CheckpointError, KeyError, TypeError):
        return None
    return found if is_complete else None


def write_preview_file(path: Path, data: bytes, nbytes: int | None = None) -> None:
    """Write a file atomically: `data`, then a hole up to `nbytes`."""
    replace_file(path, data, nbytes=nbytes or 0, durable=nbytes is None)


def create_preview_dir(model: str, revision: str) -> Path:
    """Create and return the directory of a preview; only its owner can read previews."""
    previews_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    root = preview_dir(model, revision)
    root.mkdir(parents=True, exist_ok=True)
    return root


def prune_previews() -> None:
    """Delete the least recently used previews beyond `MAX_PREVIEWS`."""
    folders = (path for depth in ("*/*", "*/*/*") for path in previews_dir().glob(depth))
    found = [path for path in folders if re.fullmatch(COMMIT, path.name)]
    for root in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[MAX_PREVIEWS:]:
        (root / MARKER).unlink(missing_ok=True)  # without its marker it does not count as a preview
        shutil.rmtree(root, ignore_errors=True)


def with_model_ids(text: str) -> str:
    """Return a text with the directories of previews replaced by the models' ids."""
    return re.sub(rf"{re.escape(str(previews_dir()))}/((?:[^/\s]+/)?[^/\s]+)/{COMMIT.strip('^$')}", r"\1", text)
