# SPDX-License-Identifier: Apache-2.0
"""A row of the checklist: its state, what shows it, and the command that brings it about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.bench.saved_documents import Saved

DONE, MISSING, NOT_NEEDED = "done", "missing", "not needed"
MEASURED = "%Y-%m-%d"


@dataclass(frozen=True)
class Row:
    """One thing to do: `evidence` says what was found, in documents or elsewhere, and what speaks against it."""

    name: str
    state: str
    evidence: str
    command: str = ""
    documents: Sequence[Saved] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return its part of the document."""
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


def done(name: str, evidence: str, documents: Sequence[Saved] = ()) -> Row:
    """Return a row that is done."""
    return Row(name, DONE, evidence, documents=documents)


def missing(name: str, evidence: str, command: str, documents: Sequence[Saved] = ()) -> Row:
    """Return a row that is to be done, with how."""
    return Row(name, MISSING, evidence, command, documents)


def not_needed(name: str, evidence: str) -> Row:
    """Return a row that has nothing to do with this artifact."""
    return Row(name, NOT_NEEDED, evidence)
