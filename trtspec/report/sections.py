# SPDX-License-Identifier: Apache-2.0
"""List of all sections of a report in order, and the sections on key figures and on the artifact itself."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from trtspec.bench.gates import FAILS, HOLDS, PROCESS, SERVER
from trtspec.core.gpus import GPUS
from trtspec.planning.documents import BenchDocument, LoadDocument, LoadPoint
from trtspec.report.evidence import ELSEWHERE, ReportInputs, contradiction, matching_candidate, mismatched_documents
from trtspec.report.measured_sections import MAKERS, closed, requests
from trtspec.report.plots import Series, faster_ranges, grouped, stacked
from trtspec.report.section import Figure, Section, Table
from trtspec.store.plan import format_bytes

GIB, MIB = 1 << 30, 1 << 20
SHOWN_FILES = 20
KEY = 16  # number of displayed digits of a step key
LEAST_SHARE = 0.01  # fraction of the build time; shorter steps are not in the plot
# The measured side and the reference side of each check.
SIDES = {
    "files": ("the artifact's files", "the digests of its manifest"),
    "parity": ("greedy text of the converted target", "greedy text of the source checkpoint"),
    "quantized_parity": ("tokens of the quantized target", "tokens of the unquantized source"),
    "lossless": ("text with speculation", "text of the target alone, same engine"),
    "min_acceptance": ("accepted tokens", "drafted tokens"),
    "min_speedup": ("seconds of the target alone", "seconds with speculation, same engine and prompts"),
}
WHERE = {PROCESS: "this process", SERVER: "the running server"}


def key_figures(facts: ReportInputs) -> Iterator[Section]:
    makers = (_speedup, _accepted, _load, _same, _artifact)
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
    if found := facts.counted(BenchDocument):
        low, high = found.speedup_interval
        yield Figure(f"{found.speedup:.2f}×", "as fast as the target alone", f"{low:.2f} to {high:.2f}, one request")
    elif loads := [(point.load.name, point.speedup) for point in _counted_loads(facts) if point.speedup]:
        name, speedup = loads[0]
        of = ", ".join(filter(None, (speedup.interval, name)))
        yield Figure(f"{speedup.ratio:.2f}×", "as fast as the target alone", of)
    elif first := matching_candidate(facts):
        best = first.best[0]
        yield Figure(f"{best.speedup:.2f}×", "expected speed-up", f"{first.name}, {requests(best.batch)}")


def _counted_loads(facts: ReportInputs) -> list[LoadPoint]:
    return closed(facts) if facts.counted(LoadDocument) else []


def _accepted(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.counted(BenchDocument):
        share, length, of = found.speculative.acceptance_rate, found.speculative.mean_accepted_len, "bench"
    elif first := matching_candidate(facts):
        share, length, of = first.acceptance_rate, first.mean_accepted_len.token_weighted[0], first.name
    else:
        return
    yield Figure(f"{share:.0%}", "of drafted tokens accepted", of)
    yield Figure(f"{length:.2f}", "tokens per step", "1 is the target alone")


def _load(facts: ReportInputs) -> Iterator[Figure]:
    first = matching_candidate(facts)
    measured = {each.load.concurrency or 1: each.speedup.ratio for each in _counted_loads(facts) if each.speedup}
    if len(measured) > 1:
        yield Figure(faster_ranges(list(measured), list(measured.values())), "concurrency with a speed-up", "bench")
    elif first and len(first.best) > 1:
        batches, speedups = [each.batch for each in first.best], [each.speedup for each in first.best]
        yield Figure(faster_ranges(batches, speedups), "concurrency with a speed-up", f"{first.name}, profile")


def _same(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.counted(BenchDocument):
        yield Figure(f"{found.identical_texts} of {found.prompts}", "identical texts", "with and without speculation")


def _artifact(facts: ReportInputs) -> Iterator[Figure]:
    if found := facts.verification:
        hold, by = sum(check.state == HOLDS for check in found.checks), "elsewhere" if facts.elsewhere else "verify"
        yield Figure(f"{hold} of {len(found.checks)}", "checks passed", by)
    if devices := facts.manifest.memory:
        most = max(devices, key=lambda device: device.total_bytes)
        yield Figure(format_bytes(most.total_bytes), "memory to serve", f"{_device_name(most.id)}, planned")


def _device_name(device: str) -> str:
    return f"GPU {device}" if device.isdigit() else device


def gates(facts: ReportInputs) -> Iterator[Section]:
    found = facts.verification
    if found is None:
        words = "This artifact has not been verified; run trtspec verify, or trtspec bench NAME --gates."
        yield Section("Gates", words)
        return
    marks = [contradiction(facts, check) for check in found.checks]
    rows = [
        (
            check.name,
            f"{'FAILS' if check.state == FAILS else check.state}{', contradicted' if mark else ''}",
            f"{check.detail}. But {mark}" if mark else check.detail,
        )
        for check, mark in zip(found.checks, marks, strict=True)
    ]
    bad = [number for number, check in enumerate(found.checks) if not check.ok or marks[number]]
    tables = [Table("Checks", ("check", "", "details"), rows, bad=bad)]
    if found.left_out:
        rows_out = [(each.name, each.reason, each.why) for each in found.left_out]
        tables.append(Table("Skipped", ("check", "cause", "reason"), rows_out))
    claims = f"{ELSEWHERE.capitalize()}: these results are from the report shipped with the artifact."
    yield Section("Gates", claims if facts.elsewhere else "", tables=tables)


def compared(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section that lists each comparison: both sides, the prompts, and the source document."""
    checks = facts.verification.checks if facts.verification else ()
    rows = []
    for check in checks:
        what, other = SIDES.get(check.name, (check.name, "the recipe's gates"))
        where = WHERE.get(check.measured_by, "the artifact's files")
        rows.append((what, other, where, f"verify: {check.name}{', elsewhere' * facts.elsewhere}"))
    if bench := facts.bench:
        runs = len(bench.baseline.tokens_per_s)
        on = f"{bench.prompts} prompts, up to {bench.max_tokens} tokens, {runs} alternating runs"
        rows.append(("seconds with speculation", "target alone, same engine and prompts", on, "bench"))
    if profile := facts.profile:
        on = f"{profile.prompts} prompts, {profile.tokens} tokens"
        rows += [(f"drafts of {each.name}", "greedy text of the target", on, "profile") for each in profile.methods]
    if rows:
        columns = ("measured", "compared with", "on", "source")
        yield Section("Comparisons", "", tables=[Table("Comparisons", columns, rows)])


def summary(facts: ReportInputs) -> Iterator[Section]:
    recipe, manifest = facts.recipe, facts.manifest
    speculation = manifest.recipe.speculation
    rows = [
        ("target", manifest.recipe.models["target"].model),
        ("method", speculation.method),
        *([("draft", manifest.recipe.models["draft"].model)] if "draft" in manifest.recipe.models else []),
        ("draft_len", str(recipe["speculation"].get("draft_len", "-"))),
        ("acceptance", speculation.acceptance),
        ("backend", f"{manifest.backend.name}: {manifest.backend.why}"),
        ("GPU", str(manifest.gpu.get("name", "none"))),
        ("built with", ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))),
        ("manifest", facts.manifest_sha256),
        *(
            (
                f"{'found' if each.is_kept else 'shown'}: {each.name}",
                f"{each.sha256}{each.against and f' ({each.against})'}",
            )
            for each in facts.sources
        ),
    ]
    yield Section("Artifact", "", tables=[Table("Artifact", ("", ""), rows)])


def memory(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the planned serving memory of each device, by component."""
    devices = facts.manifest.memory
    if not devices:
        return
    parts = {
        "weights": [each.weights_bytes for each in devices],
        "draft": [each.draft_bytes for each in devices],
        "KV cache": [each.kv_cache_bytes for each in devices],
        "activations": [each.activation_bytes for each in devices],
    }
    most = max(each.total_bytes for each in devices)
    unit, scale = ("GiB", GIB) if most >= GIB else ("MiB", MIB)
    series = [Series(name, [value / scale for value in values]) for name, values in parts.items()]
    labels = [_device_name(each.id) for each in devices]
    rows = [
        (label, *(f"{values[place] / scale:.2f}" for values in parts.values()), f"{device.total_bytes / scale:.2f}")
        for place, (label, device) in enumerate(zip(labels, devices, strict=True))
    ]
    gpu = GPUS.get(str(facts.manifest.gpu.get("name", "")).lower())
    limits = [gpu.memory_bytes / scale if gpu and each.id.isdigit() else None for each in devices]
    words = f"Planned memory for serving.{' The line is the memory of the GPU.' if any(limits) else ''}"
    table = Table.numeric_table(f"{unit} by device", ("", *parts, "total"), rows)
    yield Section("Memory", words, stacked("Memory by device", labels, series, unit, limits), [table])


def build(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the build steps with their keys and, if a build document was given, their times."""
    keys = {step.name: step.key[:KEY] for step in facts.manifest.steps}
    if facts.build is None:
        table = Table("Steps", ("step", "key"), list(keys.items()), digests=(1,))
        yield Section("Build", "", tables=[table])
        return
    steps = facts.build.steps
    rows = [(step.name, step.status, f"{step.seconds:.2f}", keys.get(step.name, "-")) for step in steps]
    table = Table("Steps", ("step", "", "seconds", "key"), rows, right=(2,), digests=(3,))
    long = [step for step in steps if step.seconds > LEAST_SHARE * facts.build.seconds]
    times = Series("seconds", [step.seconds for step in long])
    plot = grouped("Seconds by step", [step.name for step in long], [times], "seconds") if long else ""
    yield Section("Build", f"Total: {facts.build.seconds:.1f} seconds.", plot, [table])


def recipe(facts: ReportInputs) -> Iterator[Section]:
    text = yaml.safe_dump(facts.recipe, sort_keys=False, default_flow_style=None, width=100)
    yield Section("Resolved recipe", "", text=text)


def files(facts: ReportInputs) -> Iterator[Section]:
    found = sorted(facts.manifest.files, key=lambda record: -record.size)
    rows = [(record.path, f"{record.size:,}", record.digest) for record in found[:SHOWN_FILES]]
    words = f"{len(found)} files, {sum(record.size for record in found):,} bytes"
    if len(found) > SHOWN_FILES:
        words += f"; the {SHOWN_FILES} largest are shown"
    table = Table("Files", ("path", "bytes", "digest"), rows, right=(1,), digests=(2,))
    yield Section("Files", words, tables=[table])


def sections(facts: ReportInputs) -> list[Section]:
    """Return all sections for which data are available, in order."""
    makers = (key_figures, gates, *MAKERS, memory, build, compared, summary, recipe, files)
    return [section for maker in makers for section in maker(facts)]
