# SPDX-License-Identifier: Apache-2.0
"""DSpark in the LLM API, which drafts a net's whole block, and can verify a part of it by confidence.

TensorRT-LLM chooses that part from a table of step times. Pulls 17056 and 18392 of NVIDIA/TensorRT-LLM have two formats
of it, under another name of the field; no release documents one. So the table of a recipe is passed on unread, and
trtspec does not write tables from its own measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.check import LLM_ARGS
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import block_size
from trtspec.methods.dspark import DSparkOptions

SOURCE = f"{LLM_ARGS}, TorchLlmArgs.validate_speculative_config"
REFERENCE = "https://nvidia.github.io/TensorRT-LLM/1.4.0rc4/llm-api/reference, DSparkDecodingConfig"
SWITCH, OPTION = "enable_confidence_scheduling", "speculation.options.confidence_cost_table"


def _files(context: PlanContext) -> Mapping[str, Path]:
    options = context.options
    if not isinstance(options, DSparkOptions):
        return {}
    asked = {"cost_table": options.confidence_cost_table, "calibration": options.confidence_calibration}
    return {f"confidence_{name}{Path(path).suffix}": Path(path) for name, path in asked.items() if path}


def _fields(context: PlanContext) -> Mapping[str, Any]:
    """Return the fields for a verified length by confidence; paths are relative to the served model's directory."""
    files, options = _files(context), context.options
    if not files or not isinstance(options, DSparkOptions):
        return {}
    found: dict[str, Any] = {SWITCH: True, **{f"{Path(name).stem}_path": f"./1/{name}" for name in files}}
    if options.confidence_min_gain is not None:
        found["confidence_min_predicted_gain"] = options.confidence_min_gain
    return found


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    block, depth = block_size(context.sources["draft"]), context.draft_shape.max_depth
    if block and depth != block:
        message = f"the LLM API drafts a DSpark net's whole block, {block} tokens, not {depth}"
        hint = f"set speculation.draft_len: {block}"
        yield Diagnostic("speculation.draft_len", "block-size", message, hint, source=SOURCE)
    if not (files := _files(context)):
        return
    api = find_version_spec(context.version).api
    if SWITCH not in api.fields("dspark", context.version):
        message = f"TensorRT-LLM {context.version} does not choose the verified length by confidence"
        hint = f"supported from {api.since.get(SWITCH, '1.4.0rc4')} on: see engine.version"
        yield Diagnostic(OPTION, "version", message, hint, source=REFERENCE)
    tensors = context.sources["draft"].tensors
    if tensors and not any("confidence" in name for name in tensors):
        message = "the net has no confidence head, by which TensorRT-LLM chooses the verified length"
        yield Diagnostic(OPTION, "no-confidence", message, "remove it, or use a net with this head", source=REFERENCE)
    for name, path in files.items():
        if not path.is_file():
            place = f"speculation.options.{Path(name).stem}"
            hint = "TensorRT-LLM's profiler writes it; trtspec profile does not, because its format is not documented"
            yield Diagnostic(place, "not-found", f"{path} is not a file", hint)


METHOD = LlmApiMethod(fields=_fields, files=_files, has_head=True, check=_check)
