# SPDX-License-Identifier: Apache-2.0
"""Find files in an artifact's directory that its manifest does not list; such files must not be used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from trtspec.store.artifact_paths import MANIFEST, REPORTS

BYTE_CODE = "__pycache__"  # Python writes it next to models; it is never served


def unlisted(root: Path, listed: Iterable[str]) -> list[str]:
    """Return the unlisted files and links below `root`, sorted, excluding reports and byte code.

    Links that replace a listed file or one of its parent directories are not returned; comparing digests finds them.
    """
    files = {MANIFEST, *listed}
    known = files | {str(parent) for path in files for parent in Path(path).parents}
    return sorted(set(_entries(root)) - known)


def _entries(root: Path) -> Iterator[str]:
    for directory, subdirectories, names in os.walk(root):
        relative = Path(directory).relative_to(root)
        if relative.parts[:1] == (REPORTS,) or relative.name == BYTE_CODE:
            continue
        links = [name for name in subdirectories if os.path.islink(os.path.join(directory, name))]
        in_the_way = [REPORTS] if relative == Path() and (root / REPORTS).is_file() else []  # a file that is never read
        yield from (str(relative / name) for name in names + links if name not in in_the_way)
