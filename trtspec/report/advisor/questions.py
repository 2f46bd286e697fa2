# SPDX-License-Identifier: Apache-2.0
"""Facts that the rules use: the options that supply them, and facts derived from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TOLD, DERIVED_BY = "told", "derived"


@dataclass(frozen=True)
class AdvisorFact:
    """A fact with its source: "told" (an option), "derived", a URL or the name of a recipe."""

    value: Any
    source: str


AdvisorFacts = Mapping[str, AdvisorFact]

# Facts and the options that supply them.
FACT_OPTIONS = {
    "concurrency": "--concurrency",
    "request_rate": "--request-rate",
    "prompt_tokens": "--prompt-tokens",
    "output_tokens": "--output-tokens",
    "tpot_ms": "--tpot",
    "tpot_target_ms": "--tpot-target",
    "gpu_utilization": "--gpu-utilization",
    "memory_left_gb": "--memory-left",
    "temperature": "--temperature",
    "acceptance_rate": "--acceptance-rate",
    "mean_accepted_len": "--mean-accepted-len",
    "work": "--work",
    "draft": "--draft",
}


@dataclass(frozen=True)
class Derived:
    """A fact computed from others."""

    of: tuple[str, ...]
    compute: Callable[..., float]


DERIVED = {
    # Little's law (doi:10.1287/opre.9.3.383), without the time to first token
    "concurrency": Derived(
        ("request_rate", "output_tokens", "tpot_ms"),
        lambda rate, tokens, milliseconds: rate * tokens * milliseconds / 1e3,
    ),
    "prompt_ratio": Derived(("prompt_tokens", "output_tokens"), lambda prompt, output: prompt / output),
    "tpot_ratio": Derived(("tpot_ms", "tpot_target_ms"), lambda tpot, target: tpot / target),
}
# Facts from the planner and the facts that it needs; "recipe" is set if a recipe was given.
PLANNED: dict[str, tuple[str, ...]] = {
    "recipe_method": (),
    "largest_batch": (),
    "break_even_batch": (),
    "batch_size": ("concurrency",),
    "predicted_speedup": ("concurrency",),
}
RECIPE = "RECIPE"


def with_derived(answers: AdvisorFacts) -> dict[str, AdvisorFact]:
    """Return the facts with derived ones added; given and measured facts are kept."""
    found = dict(answers)
    for name, derived in DERIVED.items():
        if name not in found and all(each in found for each in derived.of):
            value = derived.compute(*(found[each].value for each in derived.of))
            found[name] = AdvisorFact(value, DERIVED_BY)
    return found


def missing_options(name: str, answers: AdvisorFacts) -> set[str] | None:
    """Return the options still required for a fact, or None if no option can supply it."""
    if name in answers:
        return set()
    if name in FACT_OPTIONS:
        return {FACT_OPTIONS[name]}
    if name in DERIVED:
        return all_missing_options(DERIVED[name].of, answers)
    if "recipe" not in answers:
        return {RECIPE} | (all_missing_options(PLANNED[name], answers) or set())
    return all_missing_options(PLANNED[name], answers) or None if "break_even_batch" in answers else None


def all_missing_options(names: Iterable[str], answers: AdvisorFacts) -> set[str] | None:
    """Return the options still required for all facts, or None if one of them cannot be supplied."""
    each = [missing_options(name, answers) for name in names]
    return None if None in each else {option for options in each for option in options or ()}
