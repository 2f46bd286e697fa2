# SPDX-License-Identifier: Apache-2.0
"""Row of the checklist: state, evidence, and command that completes the item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.bench.saved_documents import SavedDocument

DONE, MISSING, NOT_NEEDED = "done", "missing", "not needed"
MEASURED = "%Y-%m-%d"


@dataclass(frozen=True)
class ReadinessItem:
    """An item; `evidence` describes the findings, and `documents` are their sources."""

    name: str
    state: str
    evidence: str
    command: str = ""
    documents: Sequence[SavedDocument] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row as an entry of the JSON document."""
        documents = [
            {"path": str(each.path), "kind": each.kind, "sha256": each.sha256, "time": each.time.isoformat()}
            for each in self.documents
        ]
        return {
            "name": self.name,
            "state": self.state,
            "evidence": self.evidence,
            "command": self.command,
            "documents": documents,
        }


def done(name: str, evidence: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    """Return a row with state "done"."""
    return ReadinessItem(name, DONE, evidence, documents=documents)


def missing(name: str, evidence: str, command: str, documents: Sequence[SavedDocument] = ()) -> ReadinessItem:
    """Return a row with state "missing" and the command that completes it."""
    return ReadinessItem(name, MISSING, evidence, command, documents)


def not_needed(name: str, evidence: str) -> ReadinessItem:
    """Return a row with state "not needed"."""
    return ReadinessItem(name, NOT_NEEDED, evidence)
