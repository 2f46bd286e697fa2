# SPDX-License-Identifier: Apache-2.0
"""Suffix decoding in vLLM, which the package arctic-inference implements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.backends.common.checks import METHOD as KEY
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import VllmMethod, VllmRelease, cite
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.suffix import SuffixOptions


def _fields(options: SuffixOptions) -> dict[str, Any]:
    return {f"suffix_decoding_{name}": value for name, value in options.model_dump().items()}


def _check(context: PlanContext, release: VllmRelease) -> Iterator[Diagnostic]:
    message = "vLLM needs arctic-inference for suffix decoding, which its containers do not include"
    hint = "pip install arctic-inference==0.1.1 in vLLM's environment"
    yield Diagnostic(KEY, "needs-package", message, hint, "note", source=cite(release))


METHOD = VllmMethod("suffix", _fields, fixed_length=True, check=_check)
