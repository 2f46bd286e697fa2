# SPDX-License-Identifier: Apache-2.0
"""The sections of a report, in their order, and those about the artifact itself."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from trtspec.reporting.documents import Facts
from trtspec.reporting.measured import bench, by_batch, by_kind, by_length, by_position
from trtspec.reporting.section import Section, Table
from trtspec.reporting.svg import Series, stacked
from trtspec.reporting.trained import training

GIB = 1 << 30
SHOWN_FILES = 20


def sections(facts: Facts) -> list[Section]:
    """Return the sections that there is something to say in."""
    makers = (
        _summary,
        _gates,
        bench,
        by_batch,
        by_kind,
        by_position,
        by_length,
        training,
        _memory,
        _build,
        _recipe,
        _files,
    )
    return [section for maker in makers for section in maker(facts)]


def verdict(facts: Facts) -> str:
    """Return in a few words whether the gates hold."""
    if facts.verification is None:
        return "not verified"
    return "verified" if facts.verification.ok else "does not hold"


def _summary(facts: Facts) -> Iterator[Section]:
    recipe, manifest = facts.recipe, facts.manifest
    speculation = manifest.recipe.speculation
    rows = [
        ("target", manifest.recipe.models["target"].model),
        ("method", speculation.method),
        *([("draft", manifest.recipe.models["draft"].model)] if "draft" in manifest.recipe.models else []),
        ("draft_len", str(recipe["speculation"].get("draft_len", "-"))),
        ("accepts by", speculation.acceptance),
        ("backend", f"{manifest.backend.name}: {manifest.backend.why}"),
        ("GPU", str(manifest.gpu.get("name", "none named"))),
        ("made with", ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))),
        ("manifest", facts.manifest_sha256),
        *((f"shown: {source.name}", source.sha256) for source in facts.sources),
    ]
    yield Section("What it is", "", tables=[Table("The artifact", ("", ""), rows)])


def _gates(facts: Facts) -> Iterator[Section]:
    found = facts.verification
    if found is None:
        words = "Nobody has verified this artifact as it lies here: trtspec verify, or trtspec bench NAME --gates."
        yield Section("Gates", words)
        return
    rows = [
        (check.name, "holds" if check.ok else "FAILS", _cell(check.value), _cell(check.limit), check.detail)
        for check in found.checks
    ]
    tables = [Table("Checks", ("check", "", "found", "wanted", "what was found"), rows, right=(2, 3))]
    if found.left_out:
        rows_out = [(each.name, each.reason, each.why) for each in found.left_out]
        tables.append(Table("Left out", ("check", "because of", "why"), rows_out))
    yield Section("Gates", "", tables=tables)


def _memory(facts: Facts) -> Iterator[Section]:
    devices = facts.manifest.memory
    if not devices:
        return
    parts = {
        "weights": [each.weights_bytes for each in devices],
        "draft": [each.draft_bytes for each in devices],
        "KV cache": [each.kv_cache_bytes for each in devices],
        "activations": [each.activation_bytes for each in devices],
    }
    unit, scale = _scale(max(each.total_bytes for each in devices))
    series = [Series(name, [value / scale for value in values]) for name, values in parts.items()]
    labels = [f"GPU {each.id}" if each.id.isdigit() else each.id for each in devices]
    rows = [
        (label, *(f"{values[place] / scale:.2f}" for values in parts.values()), f"{device.total_bytes / scale:.2f}")
        for place, (label, device) in enumerate(zip(labels, devices, strict=True))
    ]
    table = Table.of_numbers(f"{unit} by device", ("", *parts, "all"), rows)
    yield Section("Memory", "What serving takes, as planned.", stacked(f"Memory in {unit}", labels, series), [table])


def _scale(most: int) -> tuple[str, int]:
    return ("GiB", GIB) if most >= GIB else ("MiB", 1 << 20)


def _build(facts: Facts) -> Iterator[Section]:
    keys = {step.name: step.key for step in facts.manifest.steps}
    if facts.build is None:
        table = Table("Steps", ("step", "key"), list(keys.items()))
        yield Section("How it was built", "", tables=[table])
        return
    rows = [(step.name, step.status, f"{step.seconds:.2f}", keys.get(step.name, "-")) for step in facts.build.steps]
    table = Table("Steps", ("step", "", "seconds", "key"), rows, right=(2,))
    yield Section("How it was built", f"In {facts.build.seconds:.1f} seconds.", tables=[table])


def _recipe(facts: Facts) -> Iterator[Section]:
    text = yaml.safe_dump(facts.recipe, sort_keys=False, default_flow_style=None, width=100)
    yield Section("Recipe, as it was resolved", "", text=text)


def _files(facts: Facts) -> Iterator[Section]:
    files = sorted(facts.manifest.files, key=lambda record: -record.size)
    rows = [(record.path, f"{record.size:,}", record.sha256) for record in files[:SHOWN_FILES]]
    total = sum(record.size for record in files)
    words = f"{len(files)} files, {total:,} bytes"
    if len(files) > SHOWN_FILES:
        words += f"; the {SHOWN_FILES} largest"
    yield Section("Files", words, tables=[Table("Files", ("path", "bytes", "SHA-256"), rows, right=(1,))])


def _cell(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
