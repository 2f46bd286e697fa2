# SPDX-License-Identifier: Apache-2.0
"""Validate the output of Edge-LLM's commands before it is published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.errors import StepError

# by command and --spec-type; the names are from experimental/builder/core/contracts.py@0.11.0 and the exporter
ENGINES = {False: ("llm.engine", "config.json"), True: ("spec_base.engine", "spec_draft.engine", "base_config.json")}
EXPORTED = ("llm/model.onnx", "llm/config.json")
CHECKPOINT = ("config.json",)
SIZES = ("max_input_len", "max_kv_cache_capacity", "max_batch_size")


def check_files(out: Path, names: tuple[str, ...], command: str) -> None:
    """Raise StepError if a file is missing or empty."""
    odd = [name for name in names if not (out / name).is_file() or not (out / name).stat().st_size]
    if odd:
        raise StepError(f"{command} succeeded but did not write {', '.join(odd)}", hint="see its log")


def check_engines(out: Path, sizes: Mapping[str, int]) -> None:
    """Raise StepError if the engines were not built for the requested sizes."""
    config = next(path for path in (out / "base_config.json", out / "config.json") if path.is_file())
    built = read_json(config, MAX_CONFIG_BYTES).get("builder_config")
    found = built if isinstance(built, dict) else {}
    if odd := list(_differing(found, sizes)):
        raise StepError(f"the engines differ from the request: {'; '.join(odd)}", where=str(config))


def _differing(found: Mapping[str, object], sizes: Mapping[str, int]) -> Iterator[str]:
    for key, value in sizes.items():
        if found.get(key) != value:
            yield f"{key} is {found.get(key, 'missing')}, expected {value}"
