# SPDX-License-Identifier: Apache-2.0
"""Advice from known facts by the rules in `rules.yaml`: a verdict, methods to try, and facts that could change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from trtspec.backends.base import backends
from trtspec.core.paths import load_package_yaml


@dataclass(frozen=True)
class AdvisorFact:
    """A fact and its source: "told" (a command-line option), "derived", a URL, or the name of a recipe."""

    value: Any
    source: str


AdvisorFacts = Mapping[str, AdvisorFact]

# Facts and the command-line options that supply them.
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


# Facts computed from other facts. The concurrency follows Little's law (doi:10.1287/opre.9.3.383), without the TTFT.
DERIVED: dict[str, tuple[tuple[str, ...], Callable[..., float]]] = {
    "concurrency": (("request_rate", "output_tokens", "tpot_ms"), lambda rate, tokens, ms: rate * tokens * ms / 1e3),
    "prompt_ratio": (("prompt_tokens", "output_tokens"), lambda prompt, output: prompt / output),
    "tpot_ratio": (("tpot_ms", "tpot_target_ms"), lambda tpot, target: tpot / target),
}
# Facts from the planner, each with the facts that it requires; "recipe" is known if a recipe was given.
PLANNED: dict[str, tuple[str, ...]] = {
    "recipe_method": (),
    "largest_batch": (),
    "break_even_batch": (),
    "batch_size": ("concurrency",),
    "predicted_speedup": ("concurrency",),
}
RECIPE = "RECIPE"


def with_derived(answers: AdvisorFacts) -> dict[str, AdvisorFact]:
    """Return the facts with derived facts added; facts that are already known are kept."""
    found = dict(answers)
    for name, (needed, compute) in DERIVED.items():
        if name not in found and all(each in found for each in needed):
            found[name] = AdvisorFact(compute(*(found[each].value for each in needed)), "derived")
    return found


def missing_options(name: str, answers: AdvisorFacts) -> set[str] | None:
    """Return the command-line options that are missing for a fact, or None if no option can supply it."""
    if name in answers:
        return set()
    if name in FACT_OPTIONS:
        return {FACT_OPTIONS[name]}
    if name in DERIVED:
        needed, _ = DERIVED[name]
        return all_missing_options(needed, answers)
    if "recipe" not in answers:
        return {RECIPE} | (all_missing_options(PLANNED[name], answers) or set())
    return all_missing_options(PLANNED[name], answers) or None if "break_even_batch" in answers else None


def all_missing_options(names: Iterable[str], answers: AdvisorFacts) -> set[str] | None:
    """Return the command-line options that are missing for all the facts, or None if one of them cannot be supplied."""
    each = [missing_options(name, answers) for name in names]
    return None if None in each else {option for options in each for option in options or ()}


VERDICTS = ("no", "measure", "yes")  # in order of precedence


@dataclass(frozen=True)
class Condition:
    """Condition on a fact: `least` and `most` are inclusive bounds, `above` and `below` exclusive ones.

    `among` lists the allowed values. An empty condition accepts any value.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    among: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (not self.among or value in self.among)
        )


@dataclass(frozen=True)
class AdviceRule:
    """A rule of `rules.yaml`: a verdict (`says`) or the `methods` to try, with its reason, source and conditions."""

    name: str
    why: str
    source: str
    says: str = ""
    methods: tuple[str, ...] = ()
    when: Mapping[str, Condition] = field(default_factory=dict)
    unless: Mapping[str, Condition] = field(default_factory=dict)

    def fires(self, answers: AdvisorFacts) -> bool:
        """Return True if all facts of `when` are known and no condition of `when` or `unless` excludes the rule."""
        return all(name in answers for name in self.when) and self.could_fire(answers)

    def could_fire(self, answers: AdvisorFacts) -> bool:
        """Return True if no known fact violates the conditions, so that unknown facts could make the rule apply."""
        return not any(
            name in answers and condition.holds(answers[name].value) is not wanted
            for conditions, wanted in ((self.when, True), (self.unless, False))
            for name, condition in conditions.items()
        )

    def reason(self, answers: AdvisorFacts) -> str:
        """Return the reason text with the facts inserted, rounded to three significant digits."""
        return self.why.format_map({name: _rounded(answer.value) for name, answer in answers.items()})


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


@cache
def advice_rules() -> dict[str, tuple[AdviceRule, ...]]:
    """Return the rules that decide on speculation, "speculate", and the rules that select the "methods" to try."""
    from pydantic import TypeAdapter

    found = load_package_yaml(Path(__file__).with_name("rules.yaml"))
    return TypeAdapter(dict[str, tuple[AdviceRule, ...]]).validate_python(found)


@dataclass(frozen=True)
class Advice:
    """The verdict on speculation with the rule that decided it, the other rules that apply, and the methods to try."""

    answers: AdvisorFacts
    speculate: str  # "yes", "measure" or "no"
    decided_by: AdviceRule
    others: tuple[AdviceRule, ...]
    methods: tuple[str, ...]  # in the order to try them; also set if the verdict is "no"
    method_rule: AdviceRule
    not_told: dict[tuple[str, ...], list[str]]  # missing options -> rules that could change the verdict
    first: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `advise --json`."""
        return {
            "format_version": 1,
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
    """Return the advice that the rules give for known facts; `notes` are passed on to the result."""
    known, rules = with_derived(answers), advice_rules()
    fired = [rule for rule in rules["speculate"] if rule.fires(known)]
    decided = min(fired, key=_rank)
    tried = next(rule for rule in rules["methods"] if rule.fires(known))
    values = {name: each.value for name, each in known.items()}
    methods = tuple(method.format_map(values) for method in tried.methods)
    before = takewhile(lambda rule: rule is not tried, rules["methods"]) if decided.says != "no" else ()
    stronger = [rule for rule in rules["speculate"] if _rank(rule) < _rank(decided)]
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
    """Return the precedence of a rule, by its verdict; unconditional rules come last."""
    return VERDICTS.index(rule.says) if rule.when else len(VERDICTS)


def _missing_facts(answers: AdvisorFacts, rules: Sequence[AdviceRule]) -> dict[tuple[str, ...], list[str]]:
    """Return the rules that could apply if more facts were known, by the options that supply these facts."""
    found: dict[tuple[str, ...], list[str]] = {}
    for rule in rules:
        if (options := all_missing_options(rule.when, answers)) and rule.could_fire(answers):
            found.setdefault(tuple(sorted(options)), []).append(rule.name)
    return dict(sorted(found.items(), key=lambda each: (len(each[0]), each[0])))


def _first(verdict: str, methods: Sequence[str], answers: AdvisorFacts) -> tuple[str, ...]:
    """Return the shell commands to run first."""
    recipe = answers["recipe"].value if "recipe" in answers else RECIPE
    if verdict == "no":
        return (f"trtspec build {recipe} --set speculation.method=none",)
    profiled = next(backend for backend in backends().values() if backend.in_process).methods()
    if not (here := [method for method in methods if method in profiled]):
        return (f"trtspec plan {recipe} --set speculation.method={methods[0]}",)
    load = f" --concurrency {max(1, round(answers['concurrency'].value))}" if "concurrency" in answers else ""
    return (f"trtspec profile {recipe} --prompts FILE --methods {','.join(here)}{load}",)
