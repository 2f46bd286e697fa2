# SPDX-License-Identifier: Apache-2.0
"""Rules that check a recipe for problems of TensorRT-LLM engines before a build starts.

Each rule has a public source. Facts about single versions are in `version_specs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import hardware, methods, options, sizes
from trtspec.core.diagnostics import Diagnostic

Rule = Callable[[PlanContext], Iterator[Diagnostic]]

# every function named check_* of these modules, in the order of their definitions
RULES: tuple[Rule, ...] = tuple(
    rule
    for module in (hardware, options, sizes, methods)
    for name, rule in vars(module).items()
    if name.startswith("check_")
)


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield problems for all settings that TensorRT-LLM would reject, change silently or serve incorrectly."""
    for rule in RULES:
        yield from rule(context)
