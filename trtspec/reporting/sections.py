# SPDX-License-Identifier: Apache-2.0
"""The sections of a report, in their order."""

from __future__ import annotations

from trtspec.reporting.artifact import build, files, memory, recipe, summary
from trtspec.reporting.before import baseline
from trtspec.reporting.benched import bench
from trtspec.reporting.compared import compared, gates
from trtspec.reporting.documents import ELSEWHERE, Facts
from trtspec.reporting.glance import glance
from trtspec.reporting.loaded import latencies, throughput
from trtspec.reporting.predicted import predicted
from trtspec.reporting.profiled import by_batch, by_kind, by_length, by_position, by_position_and_kind
from trtspec.reporting.section import Section
from trtspec.reporting.trained import training

MAKERS = (
    *(glance, gates),
    *(baseline, bench, throughput, latencies, by_batch, by_kind, by_position, by_position_and_kind, by_length),
    *(training, predicted, memory, build),
    *(compared, summary, recipe, files),
)


def sections(facts: Facts) -> list[Section]:
    """Return the sections that there is something to say in."""
    return [section for maker in MAKERS for section in maker(facts)]


def verdict(facts: Facts) -> str:
    """Return in a few words whether the gates hold."""
    if facts.verification is None:
        return "not verified"
    if facts.elsewhere:
        return ELSEWHERE
    return "verified" if facts.verification.ok else "does not hold"
