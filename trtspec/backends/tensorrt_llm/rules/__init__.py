# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from being built into TensorRT-LLM's engines or served from them, before hours are spent.

Every rule is a small function with its public source. Facts of single versions are the version_specs', not the rules'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import formats, hardware, methods, models, options, serving, sizes
from trtspec.core.diagnostics import Diagnostic

Rule = Callable[[PlanContext], Iterator[Diagnostic]]

RULES: tuple[Rule, ...] = (
    *hardware.RULES,
    *options.RULES,
    *sizes.RULES,
    *formats.RULES,
    *methods.RULES,
    *models.RULES,
    *serving.RULES,
)


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield everything that upstream would refuse, change in silence or serve wrongly."""
    for rule in RULES:
        yield from rule(context)
