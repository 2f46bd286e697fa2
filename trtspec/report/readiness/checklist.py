# SPDX-License-Identifier: Apache-2.0
"""All readiness items in order, and the document of `trtspec checklist --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.report.readiness import artifact_checks, measured, runtime_checks
from trtspec.report.readiness.facts import ReadinessInputs
from trtspec.report.readiness.row import MISSING, ReadinessItem

FORMAT_VERSION = 1
ROWS = (*artifact_checks.ROWS, *measured.ROWS, *runtime_checks.ROWS)


def check(facts: ReadinessInputs) -> list[ReadinessItem]:
    """Return the rows of all items."""
    return [row(facts) for row in ROWS]


def missing_rows(rows: Sequence[ReadinessItem]) -> list[ReadinessItem]:
    """Return the rows with state "missing"."""
    return [row for row in rows if row.state == MISSING]


def checklist_document(facts: ReadinessInputs, rows: Sequence[ReadinessItem]) -> dict[str, Any]:
    """Return the document of `checklist --json`."""
    return {
        "format_version": FORMAT_VERSION,
        "name": facts.recipe.name,
        "artifact": str(facts.root),
        "manifest": facts.manifest_sha256,
        "missing": len(missing_rows(rows)),
        "rows": [row.as_dict() for row in rows],
    }
