# SPDX-License-Identifier: Apache-2.0
"""Check a recipe for problems in building TensorRT-LLM engines and serving them, before a build starts.

Every rule is a small function with a public source. Facts about single versions are in `version_specs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import hardware, methods, models, options, sizes
from trtspec.core.diagnostics import Diagnostic

Rule = Callable[[PlanContext], Iterator[Diagnostic]]

RULES: tuple[Rule, ...] = (
    *hardware.RULES,
    *options.RULES,
    *sizes.RULES,
    *hardware.FORMAT_RULES,
    *methods.RULES,
    *models.RULES,
    *sizes.SERVING_RULES,
)


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield everything that upstream would reject, change silently or serve incorrectly."""
    for rule in RULES:
        yield from rule(context)
