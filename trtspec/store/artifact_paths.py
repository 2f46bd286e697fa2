# SPDX-License-Identifier: Apache-2.0
"""Paths inside an artifact, relative to its root, and the search for files that its manifest does not list.

No other module defines these names. Servers import this module, so it must not import pydantic.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MANIFEST = "manifest.json"
CHECKPOINTS, ENGINES, PLUGINS = "checkpoints", "engines", "plugins"
REPOSITORY, TOKENIZER, PROMPTS, REPORTS = "model_repository", "tokenizer", "prompts", "reports"
ATTESTATIONS = "attestations"  # provenance, bill of materials and signatures


def checkpoint(role: str) -> str:
    """Return the path of the checkpoint directory for the role "target" or "draft"."""
    return f"{CHECKPOINTS}/{role}"


def engine(role: str) -> str:
    """Return the path of the engine directory for the role "target" or "draft"."""
    return f"{ENGINES}/{role}"


def from_model(path: str) -> str:
    """Convert an artifact path to a path relative to the directory of a model in the artifact's repository."""
    return f"../../{path}"


_APART = {(REPORTS,), (ATTESTATIONS,)}  # directories whose files no manifest lists
BYTE_CODE = "__pycache__"  # Python writes it next to models; it is never served


def unlisted(root: Path, listed: Iterable[str]) -> list[str]:
    """Return the files and links below `root` that are not in `listed`, sorted.

    Reports, attestations and byte code are left out.

    Links that replace a listed file or one of its parent directories are not returned; comparing digests finds them.
    """
    files = {MANIFEST, *listed}
    known = files | {str(parent) for path in files for parent in Path(path).parents}
    return sorted(set(_found_paths(root)) - known)


def _found_paths(root: Path) -> Iterator[str]:
    for directory, subdirectories, names in os.walk(root):
        relative = Path(directory).relative_to(root)
        if relative.parts[:1] in _APART or relative.name == BYTE_CODE:
            continue
        links = [name for name in subdirectories if os.path.islink(os.path.join(directory, name))]
        # files in place of these directories, which are never read
        in_the_way = [name for (name,) in _APART if relative == Path() and (root / name).is_file()]
        yield from (str(relative / name) for name in names + links if name not in in_the_way)
