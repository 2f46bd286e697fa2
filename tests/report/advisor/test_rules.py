# SPDX-License-Identifier: Apache-2.0
"""Rules: each one can apply, none contradicts another, all have reasons, and load never favours drafting."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.report.advisor.table import table
from trtspec.engine.prompts.prompt import KINDS
from trtspec.methods.base import methods
from trtspec.report.advisor.advice import (
    DERIVED,
    FACT_OPTIONS,
    PLANNED,
    VERDICTS,
    Advice,
    AdviceRule,
    AdvisorFact,
    Condition,
    advice_rules,
    advise,
)

RULES = (*advice_rules()["speculate"], *advice_rules()["methods"])
DRAFTS = ("none", "model", "head", "mtp")
LOADS = ("concurrency", "request_rate", "gpu_utilization")


def named(rule: AdviceRule) -> str:
    return rule.name


def given_facts(**values: Any) -> dict[str, AdvisorFact]:
    return {name: AdvisorFact(value, "told") for name, value in values.items()}


def advised(**values: Any) -> Advice:
    return advise(given_facts(**values))


def values_at(condition: Condition) -> list[Any]:
    """Return values at the limits of a condition and on both sides of them."""
    if condition.among:
        return list(condition.among)
    limits = [
        limit for limit in (condition.least, condition.most, condition.above, condition.below) if limit is not None
    ]
    return [limit * step for limit in limits for step in (0.5, 0.999, 1, 1.001, 2)] + [0.0] * (0.0 in limits) or [3.0]


def witness(rule: AdviceRule) -> dict[str, AdvisorFact]:
    """Return the minimal facts for which a rule applies."""
    found = {name: next(value for value in values_at(each) if each.holds(value)) for name, each in rule.when.items()}
    return given_facts(**found)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_rule_fires_only_with_all_its_facts_and_gives_a_reason(rule: AdviceRule) -> None:
    answers = witness(rule)
    assert rule.fires(answers)
    assert "{" not in rule.reason(answers)
    for name in answers:
        assert not rule.fires({other: each for other, each in answers.items() if other != name})


@pytest.mark.parametrize("rule", advice_rules()["speculate"], ids=named)
def test_speculate_rule_decides_with_only_its_facts(rule: AdviceRule) -> None:
    assert advise(witness(rule)).decided_by is rule


@pytest.mark.parametrize("rule", advice_rules()["methods"], ids=named)
def test_method_rule_decides_with_only_its_facts(rule: AdviceRule) -> None:
    assert advise(witness(rule)).method_rule is rule


def test_rules_use_only_existing_facts_verdicts_and_methods() -> None:
    known = {*FACT_OPTIONS, *DERIVED, *PLANNED}
    for rule in RULES:
        assert {*rule.when, *rule.unless} <= known, rule.name
        fields = {name for _, name, _, _ in Formatter().parse(rule.why) if name}
        assert fields <= rule.when.keys(), rule.name
        assert rule.source
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.says in VERDICTS for rule in advice_rules()["speculate"])
    words = {word for rule in RULES for each in (*rule.when.values(), *rule.unless.values()) for word in each.among}
    assert words <= {*KINDS, *DRAFTS}
    tried = {method for rule in advice_rules()["methods"] for method in rule.methods if "{" not in method}
    assert tried <= methods().keys()


def test_rules_do_not_contradict_each_other() -> None:
    """Rules on the same facts never give both yes and no for the same values."""
    for yes, no in product(advice_rules()["speculate"], repeat=2):
        if (yes.says, no.says) != ("yes", "no") or yes.when.keys() != no.when.keys():
            continue
        grids = [{*values_at(yes.when[name]), *values_at(no.when[name])} for name in yes.when]
        for values in product(*grids):
            answers = given_facts(**dict(zip(yes.when, values, strict=True)))
            assert not (yes.fires(answers) and no.fires(answers)), (yes.name, no.name, values)


GRID: dict[str, tuple[Any, ...]] = {
    "concurrency": (None, 1, 20, 100),
    "request_rate": (None, 0.5, 50),
    "prompt_tokens": (None, 100, 50_000),
    "output_tokens": (None, 4, 400),
    "gpu_utilization": (None, 2, 20, 80),
    "temperature": (None, 1.0),
    "tpot_ms": (None, 20),
    "tpot_target_ms": (None, 10, 30),
    "draft": (None, *DRAFTS),
    "work": (None, "rag", "code"),
}


@pytest.mark.slow
def test_every_combination_has_a_verdict_with_a_reason() -> None:
    seen = set()
    for number, values in enumerate(product(*GRID.values())):
        if number % 17:  # a prime, so that all values of all facts are combined
            continue
        given_ = {name: value for name, value in zip(GRID, values, strict=True) if value is not None}
        found = advised(**given_)
        assert found.speculate in VERDICTS
        assert found.decided_by.reason(found.answers)
        assert found.decided_by.source
        assert found.methods
        assert found.first
        assert found.speculate == min((rule.says for rule in (found.decided_by, *found.others)), key=VERDICTS.index)
        seen.add(found.decided_by.name)
    assert len(seen) >= 9


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"concurrency": 8}, "few-requests"),
        ({"concurrency": 8.01}, "some-requests"),
        ({"concurrency": 63.9}, "some-requests"),
        ({"concurrency": 64}, "many-requests"),
        ({"concurrency": 64, "prompt_tokens": 16384}, "many-long-requests"),
        ({"concurrency": 64, "prompt_tokens": 16383}, "many-requests"),
        ({"gpu_utilization": 8.9}, "spare-compute"),
        ({"gpu_utilization": 9}, "some-spare-compute"),
        ({"gpu_utilization": 34.9}, "some-spare-compute"),
        ({"gpu_utilization": 35}, "no-spare-compute"),
        ({"concurrency": 1, "output_tokens": 7.9}, "few-tokens"),
        ({"concurrency": 1, "output_tokens": 8}, "short-answers"),
        ({"concurrency": 1, "output_tokens": 31.9}, "short-answers"),
        ({"concurrency": 1, "output_tokens": 32}, "few-requests"),
        ({"concurrency": 1, "output_tokens": 40, "prompt_tokens": 3999}, "few-requests"),
        ({"concurrency": 1, "output_tokens": 40, "prompt_tokens": 4000}, "mostly-prefill"),
        ({"concurrency": 1, "temperature": 0.99}, "few-requests"),
        ({"concurrency": 1, "temperature": 1.0}, "hot"),
        ({"concurrency": 1, "acceptance_rate": 0.49}, "seldom-accepted"),
        ({"concurrency": 1, "acceptance_rate": 0.5}, "few-requests"),
        ({"concurrency": 1, "mean_accepted_len": 1.49}, "short-steps"),
        ({"concurrency": 1, "mean_accepted_len": 1.5}, "few-requests"),
        ({"concurrency": 1, "tpot_ms": 30, "tpot_target_ms": 30}, "fast-enough"),
        ({"concurrency": 1, "tpot_ms": 30, "tpot_target_ms": 29}, "few-requests"),
        ({"concurrency": 1, "tpot_ms": 20, "tpot_target_ms": 30, "mean_accepted_len": 3}, "few-requests"),
        ({"concurrency": 1, "tpot_ms": 37, "tpot_target_ms": 10}, "out-of-reach"),
        ({"request_rate": 1}, "few-arrivals"),
        ({"request_rate": 2}, "nothing-decides"),
        ({"request_rate": 4}, "many-arrivals"),
        ({"request_rate": 10, "output_tokens": 100, "tpot_ms": 8}, "few-requests"),
        ({"request_rate": 10, "output_tokens": 100, "tpot_ms": 64}, "many-requests"),
        ({}, "nothing-decides"),
    ],
)
def test_deciding_rule_changes_at_its_limit(values: dict[str, float], rule: str) -> None:
    assert advised(**values).decided_by.name == rule


@pytest.mark.parametrize(
    ("values", "tried"),
    [
        ({"draft": "head"}, ("eagle3",)),
        ({"draft": "head", "memory_left_gb": 0.9}, ("suffix", "ngram")),
        ({"draft": "model", "memory_left_gb": 2.9}, ("suffix", "ngram")),
        ({"draft": "model", "memory_left_gb": 3}, ("draft_target",)),
        ({"draft": "mtp", "memory_left_gb": 0}, ("mtp",)),
        ({"draft": "head", "work": "code-editing"}, ("suffix", "ngram")),
        ({"draft": "none", "work": "code"}, ("suffix", "ngram")),
        ({"draft": "head", "recipe_method": "medusa"}, ("medusa",)),
    ],
)
def test_methods_to_try_depend_on_draft_memory_and_work(values: dict[str, Any], tried: tuple[str, ...]) -> None:
    assert advised(**values).methods == tried


COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": st.floats(1, 1e5),
        "output_tokens": st.floats(1, 4096),
        "tpot_ms": st.floats(0.1, 1000),
        "tpot_target_ms": st.floats(0.1, 1000),
        "memory_left_gb": st.floats(0, 200),
        "temperature": st.floats(0, 2),
        "acceptance_rate": st.floats(0, 1),
        "mean_accepted_len": st.floats(1, 10),
        "work": st.sampled_from(KINDS),
        "draft": st.sampled_from(DRAFTS),
        "concurrency": st.floats(0.01, 500),
        "request_rate": st.floats(0.001, 500),
        "gpu_utilization": st.floats(0, 100),
    },
)


@settings(**COMMON)
@given(OTHERS, st.sampled_from(LOADS), st.floats(0.001, 100), st.floats(0.001, 100))
def test_more_load_never_favours_drafting(others: dict[str, Any], load: str, one: float, other: float) -> None:
    ranks = [VERDICTS.index(advised(**{**others, load: value}).speculate) for value in sorted((one, other))]
    assert ranks[1] <= ranks[0]


def test_missing_facts_are_listed_with_the_rules_they_could_decide() -> None:
    found = advised(concurrency=2)
    assert found.not_told["--acceptance-rate",] == ["seldom-accepted"]
    assert "hot" in found.not_told["--temperature",]
    assert found.not_told["--tpot", "--tpot-target"] == ["fast-enough", "out-of-reach"]
    assert not any("--concurrency" in options for options in found.not_told)
    assert "many-requests" in advised().not_told["--concurrency",]
    assert "--output-tokens" not in {
        option for options in advised(output_tokens=500).not_told for option in options if len(options) == 1
    }


def test_only_facts_that_could_change_the_verdict_are_requested() -> None:
    decided = advised(concurrency=100, draft="head", memory_left_gb=10, work="chat", prompt_tokens=10)
    assert decided.speculate == "no"
    assert decided.not_told == {}
    told = advised(concurrency=20, gpu_utilization=20, draft="mtp", work="chat", memory_left_gb=10)
    assert "few-requests" not in {name for names in told.not_told.values() for name in names}


@settings(**COMMON)
@given(OTHERS)
def test_requested_facts_exclude_given_ones(others: dict[str, Any]) -> None:
    found = advised(**others)
    for options, names in found.not_told.items():
        assert names
        assert not {FACT_OPTIONS[name] for name in others} & {*options}


def test_advise_page_has_the_rules_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "advise.md").read_text(encoding="utf-8")
    assert table() in page, "update the table with: python -m tests.report.advisor.table"
