# SPDX-License-Identifier: Apache-2.0
"""All sections of a report, in order."""

from __future__ import annotations

from trtspec.report.artifact import build, files, memory, recipe, summary
from trtspec.report.before import baseline
from trtspec.report.benched import bench
from trtspec.report.compared import compared, gates
from trtspec.report.documents import ReportInputs
from trtspec.report.loaded import latencies, throughput
from trtspec.report.overview import key_figures
from trtspec.report.predicted import predicted
from trtspec.report.profiled import by_batch, by_kind, by_length, by_position, by_position_and_kind
from trtspec.report.section import Section
from trtspec.report.trained import training

MAKERS = (
    *(key_figures, gates),
    *(baseline, bench, throughput, latencies, by_batch, by_kind, by_position, by_position_and_kind, by_length),
    *(training, predicted, memory, build),
    *(compared, summary, recipe, files),
)


def sections(facts: ReportInputs) -> list[Section]:
    """Return the sections for which data is available."""
    return [section for maker in MAKERS for section in maker(facts)]
