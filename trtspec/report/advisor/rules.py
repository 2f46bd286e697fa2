# SPDX-License-Identifier: Apache-2.0
"""Rules of `rules.yaml`: conditions, and whether a rule applies or could apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.package_data import load_package_yaml
from trtspec.report.advisor.questions import AdvisorFacts

ConditionTable = Mapping[str, Mapping[str, Any]]
VERDICTS = ("no", "measure", "yes")  # in order of precedence


@dataclass(frozen=True)
class Condition:
    """Condition on a fact; `least` and `most` are inclusive, `above` and `below` exclusive. Empty accepts any value."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    among: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether a value meets the condition."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (not self.among or value in self.among)
        )


@dataclass(frozen=True)
class AdviceRule:
    """A rule: a verdict (`says`) or the `methods` to try, with reason, source and conditions."""

    name: str
    why: str
    source: str
    says: str = ""
    methods: tuple[str, ...] = ()
    when: Mapping[str, Condition] = field(default_factory=dict)
    unless: Mapping[str, Condition] = field(default_factory=dict)

    def fires(self, answers: AdvisorFacts) -> bool:
        """Return whether all facts of `when` are known and the conditions are met."""
        return all(name in answers for name in self.when) and self.could_fire(answers)

    def could_fire(self, answers: AdvisorFacts) -> bool:
        """Return whether no known fact violates the conditions."""
        return all(_holds(name, each, answers, or_unknown=True) for name, each in self.when.items()) and not any(
            _holds(name, each, answers, or_unknown=False) for name, each in self.unless.items()
        )

    def reason(self, answers: AdvisorFacts) -> str:
        """Return the reason with the facts inserted, rounded to three digits."""
        return self.why.format_map({name: _rounded(answer.value) for name, answer in answers.items()})


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _holds(name: str, condition: Condition, answers: AdvisorFacts, *, or_unknown: bool) -> bool:
    return condition.holds(answers[name].value) if name in answers else or_unknown


@cache
def speculate_rules() -> tuple[AdviceRule, ...]:
    """Return the rules that decide whether to speculate."""
    return _rules("speculate")


@cache
def method_rules() -> tuple[AdviceRule, ...]:
    """Return the rules that select the methods to try."""
    return _rules("methods")


def _rules(kind: str) -> tuple[AdviceRule, ...]:
    found = load_package_yaml(Path(__file__).with_name("rules.yaml"))[kind]
    return tuple(_rule(**each) for each in found)


def _rule(
    *, methods: Sequence[str] = (), when: ConditionTable, unless: ConditionTable | None = None, **texts: str
) -> AdviceRule:
    return AdviceRule(**texts, methods=tuple(methods), when=_conditions(when), unless=_conditions(unless or {}))


def _conditions(given: ConditionTable) -> dict[str, Condition]:
    return {name: _condition(**each) for name, each in given.items()}


def _condition(*, among: Sequence[str] = (), **limits: float) -> Condition:
    return Condition(**limits, among=tuple(among))
