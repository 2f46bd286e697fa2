# SPDX-License-Identifier: Apache-2.0
"""Sections about the artifact: its checks and what they compare, identity, memory, build, recipe and files."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from trtspec.bench.gates import FAILS, VerificationCheck
from trtspec.core.gpus import GPUS
from trtspec.report.decision import contradiction
from trtspec.report.documents import ELSEWHERE, ReportInputs
from trtspec.report.plots.bars import grouped, stacked
from trtspec.report.plots.frame import Series
from trtspec.report.section import Section, Table

# The two sides of each check; gates with limits compare a measurement with the recipe.
SIDES = {
    "files": ("the artifact's files", "the digests of its manifest"),
    "parity": ("greedy text of the converted target", "greedy text of the source checkpoint"),
    "quantized_parity": ("tokens of the quantized target", "tokens of the unquantized source"),
    "lossless": ("text with speculation", "text of the target alone, same engine"),
    "min_acceptance": ("accepted tokens", "drafted tokens"),
    "min_speedup": ("seconds of the target alone", "seconds with speculation, same engine and prompts"),
}


def gates(facts: ReportInputs) -> Iterator[Section]:
    """Yield the checks and the skipped checks."""
    found = facts.verification
    if found is None:
        words = "This artifact has not been verified; run trtspec verify, or trtspec bench NAME --gates."
        yield Section("Gates", words)
        return
    marks = [contradiction(facts, check) for check in found.checks]
    rows = [_row(check, mark) for check, mark in zip(found.checks, marks, strict=True)]
    bad = [number for number, check in enumerate(found.checks) if not check.ok or marks[number]]
    tables = [Table("Checks", ("check", "", "details"), rows, bad=bad)]
    if found.left_out:
        rows_out = [(each.name, each.reason, each.why) for each in found.left_out]
        tables.append(Table("Skipped", ("check", "cause", "reason"), rows_out))
    claims = f"{ELSEWHERE.capitalize()}: these results are from the report shipped with the artifact."
    yield Section("Gates", claims if facts.elsewhere else "", tables=tables)


def _row(check: VerificationCheck, mark: str) -> tuple[str, str, str]:
    """Return the row of a check; `mark` is a contradicting benchmark result, or ""."""
    state = "FAILS" if check.state == FAILS else check.state
    return (
        check.name,
        f"{state}, contradicted" if mark else state,
        f"{check.detail}. But {mark}" if mark else check.detail,
    )


def compared(facts: ReportInputs) -> Iterator[Section]:
    """Yield the comparisons: both sides, the prompts, and the source document."""
    checks = facts.verification.checks if facts.verification else ()
    rows = [_checked(check, elsewhere=facts.elsewhere) for check in checks]
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


def _checked(check: VerificationCheck, *, elsewhere: bool) -> tuple[str, str, str, str]:
    what, other = SIDES.get(check.name, (check.name, "the recipe's gates"))
    where = {"process": "this process", "server": "the running server"}.get(check.measured_by, "the artifact's files")
    return what, other, where, f"verify: {check.name}{', elsewhere' * elsewhere}"


GIB, MIB = 1 << 30, 1 << 20
SHOWN_FILES = 20
KEY = 16  # displayed digits of a step's key
LEAST_SHARE = 0.01  # share of the build time; shorter steps are only in the table


def summary(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section with models, method, backend, tools and digests."""
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
    """Yield the planned memory of each device by component."""
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
    labels = [f"GPU {each.id}" if each.id.isdigit() else each.id for each in devices]
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
    """Yield the build steps with their keys, and their times if a build document was given."""
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
    """Yield the resolved recipe as YAML."""
    text = yaml.safe_dump(facts.recipe, sort_keys=False, default_flow_style=None, width=100)
    yield Section("Resolved recipe", "", text=text)


def files(facts: ReportInputs) -> Iterator[Section]:
    """Yield the SHOWN_FILES largest files with their digests."""
    found = sorted(facts.manifest.files, key=lambda record: -record.size)
    rows = [(record.path, f"{record.size:,}", record.digest) for record in found[:SHOWN_FILES]]
    words = f"{len(found)} files, {sum(record.size for record in found):,} bytes"
    if len(found) > SHOWN_FILES:
        words += f"; the {SHOWN_FILES} largest are shown"
    table = Table("Files", ("path", "bytes", "digest"), rows, right=(1,), digests=(2,))
    yield Section("Files", words, tables=[table])
