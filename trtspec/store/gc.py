# SPDX-License-Identifier: Apache-2.0
"""Remove entries from the store and clean up after terminated processes.

store.py and prune.py decide which entries are removed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from trtspec.core.failpoint import failpoint
from trtspec.store.layout import Layout


def remove_entry(layout: Layout, key: str) -> bool:
    """Remove an entry, whose lock the caller holds; return whether it existed."""
    layout.stamps(key).unlink(missing_ok=True)
    aside = layout.temporary(key)
    try:
        os.rename(layout.entry(key), aside)  # rename first: a kill leaves garbage, not half an entry
    except FileNotFoundError:
        return False
    failpoint("store.before-delete")
    shutil.rmtree(aside)
    return True


def collect(layout: Layout, *folders: str) -> None:
    """Delete leftovers of terminated processes in these folders; a name is in use while its key's lock is held."""
    from filelock import Timeout

    for path in [path for folder in folders for path in layout.listed(folder)]:
        with suppress(Timeout), layout.lock(path.name.split(".")[0], timeout_s=0):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
