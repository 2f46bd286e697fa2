# SPDX-License-Identifier: Apache-2.0
"""All sections of a report, in order; the first has the key figures."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.gates import HOLDS
from trtspec.report.artifact_sections import build, compared, files, gates, memory, recipe, summary
from trtspec.report.decision import matching_candidate, mismatched_documents
from trtspec.report.documents import ReportInputs
from trtspec.report.draft_sections import (
    by_batch,
    by_kind,
    by_length,
    by_position,
    by_position_and_kind,
    requests,
    training,
)
from trtspec.report.plots.lines import faster_ranges
from trtspec.report.section import Figure, Section
from trtspec.report.speed_sections import baseline, bench, closed, latencies, predicted, throughput
from trtspec.store.plan import format_bytes


def key_figures(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section with the available key figures."""
    makers = (_speedup, _accepted, _load, _same, _gates, _memory)
    yield Section("At a glance", _sentence(facts), figures=[figure for maker in makers for figure in maker(facts)])


def _sentence(facts: ReportInputs) -> str:
    manifest = facts.manifest
    speculation, models = manifest.recipe.speculation, manifest.recipe.models
    drafts = f" with {models['draft'].model}" if "draft" in models else ""
    text = f"{models['target'].model}, {speculation.method}{drafts}, on the {manifest.backend.name} backend"
    if kept := [each.name for each in facts.sources if each.is_kept]:
        text += f". Includes results saved on this machine: {', '.join(kept)}"
    warnings = "".join(f". Warning: {each}" for each in mismatched_documents(facts))
    return text + (f"{warnings}; not used for the verdict" if warnings else "")


def _speedup(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.counted("bench"):
        low, high = found.speedup_interval
        yield Figure(f"{found.speedup:.2f}×", "as fast as the target alone", f"{low:.2f} to {high:.2f}, one request")
    elif loads := [
        (point.load.name, point.speedup) for point in closed(facts) if point.speedup and facts.counted("load")
    ]:
        name, speedup = loads[0]
        yield Figure(
            f"{speedup.ratio:.2f}×", "as fast as the target alone", ", ".join(filter(None, (speedup.interval, name)))
        )
    elif first := matching_candidate(facts):
        best = first.best[0]
        yield Figure(f"{best.speedup:.2f}×", "expected speed-up", f"{first.name}, {requests(best.batch)}")


def _accepted(facts: ReportInputs) -> Iterator[Figure]:
    bench = facts.counted("bench")
    if bench:
        found = bench.speculative
        yield Figure(f"{found.acceptance_rate:.0%}", "of drafted tokens accepted", "bench")
        yield Figure(f"{found.mean_accepted_len:.2f}", "tokens per step", "1 is the target alone")
    elif first := matching_candidate(facts):
        yield Figure(f"{first.acceptance_rate:.0%}", "of drafted tokens accepted", first.name)
        yield Figure(f"{first.mean_accepted_len.token_weighted[0]:.2f}", "tokens per step", "1 is the target alone")


def _load(facts: ReportInputs) -> Iterator[Figure]:
    first, points = matching_candidate(facts), closed(facts) if facts.counted("load") else []
    measured = {point.load.concurrency or 1: point.speedup.ratio for point in points if point.speedup}
    if len(measured) > 1:
        yield Figure(faster_ranges(list(measured), list(measured.values())), "concurrency with a speed-up", "bench")
    elif first and len(first.best) > 1:
        batches, speedups = [each.batch for each in first.best], [each.speedup for each in first.best]
        yield Figure(faster_ranges(batches, speedups), "concurrency with a speed-up", f"{first.name}, profile")


def _same(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.counted("bench"):
        yield Figure(f"{found.identical_texts} of {found.prompts}", "identical texts", "with and without speculation")


def _gates(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.verification:
        hold, by = sum(check.state == HOLDS for check in found.checks), "elsewhere" if facts.elsewhere else "verify"
        yield Figure(f"{hold} of {len(found.checks)}", "checks passed", by)


def _memory(facts: ReportInputs) -> Iterator[Figure]:
    if devices := facts.manifest.memory:
        most = max(devices, key=lambda device: device.total_bytes)
        where = f"GPU {most.id}" if most.id.isdigit() else most.id
        yield Figure(format_bytes(most.total_bytes), "memory to serve", f"{where}, planned")


MAKERS = (
    *(key_figures, gates),
    *(baseline, bench, throughput, latencies, by_batch, by_kind, by_position, by_position_and_kind, by_length),
    *(training, predicted, memory, build),
    *(compared, summary, recipe, files),
)


def sections(facts: ReportInputs) -> list[Section]:
    """Return the sections for which data is available."""
    return [section for maker in MAKERS for section in maker(facts)]
