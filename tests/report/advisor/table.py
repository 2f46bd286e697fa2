# SPDX-License-Identifier: Apache-2.0
"""Generator of the rules table of docs/advise.md: `python -m tests.report.advisor.table`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtspec.report.advisor.advice import AdviceRule, Condition, advice_rules

SIGNS = {"least": "≥", "most": "≤", "above": ">", "below": "<"}


def table() -> str:
    lines = ["| rule | verdict | when | source |", "|---|---|---|---|"]
    lines += [row(rule, f"**{rule.says}**") for rule in advice_rules()["speculate"]]
    lines += ["", "| rule | methods | when | source |", "|---|---|---|---|"]
    lines += [
        row(rule, ", ".join(f"`{method.strip('{}')}`" for method in rule.methods)) for rule in advice_rules()["methods"]
    ]
    return "\n".join(lines) + "\n"


def row(rule: AdviceRule, says: str) -> str:
    words = [*conditions(rule.when), *(f"not {each}" for each in conditions(rule.unless, "known"))]
    return f"| {rule.name} | {says} | {', '.join(words) or 'always'} | {rule.source} |"


def conditions(table: Mapping[str, Condition], bare: str = "") -> Iterator[str]:
    for name, condition in table.items():
        limits = [
            f"{sign} {getattr(condition, key):g}" for key, sign in SIGNS.items() if getattr(condition, key) is not None
        ]
        said = " and ".join(limits) or ", ".join(condition.among) or bare
        if said:
            yield f"`{name}` {said}"
        elif len(table) == 1:
            yield f"`{name}` is known"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201
