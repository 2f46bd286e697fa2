# SPDX-License-Identifier: Apache-2.0
"""Evaluate the rules on known facts: the deciding rule, other rules that apply, and missing facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trtspec.backends.base import backends
from trtspec.report.advisor.questions import AdvisorFacts, all_missing_options, with_derived
from trtspec.report.advisor.rules import VERDICTS, AdviceRule, method_rules, speculate_rules

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Advice:
    """Verdict ("yes", "measure" or "no") with the deciding rule and the other rules that apply.

    `methods` are in the order to try them, from `method_rule`; they are also set if the verdict is "no". `not_told`
    maps missing options to the rules that could change the verdict.
    """

    answers: AdvisorFacts
    speculate: str
    decided_by: AdviceRule
    others: tuple[AdviceRule, ...]
    methods: tuple[str, ...]
    method_rule: AdviceRule
    not_told: dict[tuple[str, ...], list[str]]
    first: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `advise --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "speculate": self.speculate,
            "decided_by": self._rule(self.decided_by),
            "methods": list(self.methods),
            "methods_by": self._rule(self.method_rule),
            "first": list(self.first),
            "rules": [self._rule(rule) for rule in self.others],
            "not_told": [{"options": list(options), "could_decide": names} for options, names in self.not_told.items()],
            "answers": {
                name: {"value": each.value, "from": each.source} for name, each in sorted(self.answers.items())
            },
            "notes": list(self.notes),
        }

    def _rule(self, rule: AdviceRule) -> dict[str, str]:
        verdict = {"says": rule.says} if rule.says else {}
        return {"name": rule.name, **verdict, "why": rule.reason(self.answers), "source": rule.source}


def advise(answers: AdvisorFacts, notes: Sequence[str] = ()) -> Advice:
    """Return the advice for known facts; `notes` are passed through."""
    known = with_derived(answers)
    fired = [rule for rule in speculate_rules() if rule.fires(known)]
    decided = min(fired, key=_rank)
    tried = next(rule for rule in method_rules() if rule.fires(known))
    values = {name: each.value for name, each in known.items()}
    methods = tuple(method.format_map(values) for method in tried.methods)
    before = takewhile(lambda rule: rule is not tried, method_rules()) if decided.says != "no" else ()
    stronger = [rule for rule in speculate_rules() if _rank(rule) < _rank(decided)]
    return Advice(
        answers=known,
        speculate=decided.says,
        decided_by=decided,
        others=tuple(rule for rule in fired if rule is not decided and rule.when),
        methods=methods,
        method_rule=tried,
        not_told=_missing_facts(known, [*stronger, *before]),
        first=_first(decided.says, methods, known),
        notes=tuple(notes),
    )


def _rank(rule: AdviceRule) -> int:
    """Return the precedence of a rule: by verdict, with unconditional rules last."""
    return VERDICTS.index(rule.says) if rule.when else len(VERDICTS)


def _missing_facts(answers: AdvisorFacts, rules: Sequence[AdviceRule]) -> dict[tuple[str, ...], list[str]]:
    """Return the rules that missing facts could make apply, by the options that supply these facts."""
    found: dict[tuple[str, ...], list[str]] = {}
    for rule in rules:
        if (options := all_missing_options(rule.when, answers)) and rule.could_fire(answers):
            found.setdefault(tuple(sorted(options)), []).append(rule.name)
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), each[0])))


def _first(verdict: str, methods: Sequence[str], answers: AdvisorFacts) -> tuple[str, ...]:
    """Return the commands to run first."""
    recipe = answers["recipe"].value if "recipe" in answers else "RECIPE"
    if verdict == "no":
        return (f"trtspec build {recipe} --set speculation.method=none",)
    if not (here := [method for method in methods if method in _profiled()]):
        return (f"trtspec plan {recipe} --set speculation.method={methods[0]}",)
    load = f" --concurrency {max(1, round(answers['concurrency'].value))}" if "concurrency" in answers else ""
    return (f"trtspec profile {recipe} --prompts FILE --methods {','.join(here)}{load}",)


def _profiled() -> Collection[str]:
    """Return the methods of the in-process backend, which `profile` supports."""
    return next(backend for backend in backends().values() if backend.in_process).methods()
