# SPDX-License-Identifier: Apache-2.0
"""Terminal output of the prediction of `trtspec plan`: tables, a plot and conclusions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.cli.render import print_line, show_chart, show_table

Document = dict[str, Any]


def show_predicted(predicted: Document, max_seq_len: int) -> None:
    """Show the predicted speed-up, or the reason why it is unknown."""
    if predicted["why_not"]:
        is_predicted = _show_by_parameters(predicted)
        what = "tokens/s and larger batches are not predicted" if is_predicted else "no speed is predicted"
        print_line(f"{what}: {predicted['why_not']}")
        return
    show_table(_title(predicted), *_table(predicted), right=range(1, 6))
    rates = {rate[-1]: f"acceptance rate {rate}" for rate in predicted["by_acceptance_rate"]}
    show_chart("speed-up by batch size; 1x is the target alone", "batch", _rows(predicted), rates)
    if predicted["gpu_price"] is not None:
        show_table("dollars per million tokens, for GPUs without idle time", *_costs(predicted), right=range(1, 6))
    for sentence in _sentences(predicted, max_seq_len):
        print_line(sentence)


def _show_by_parameters(predicted: Document) -> bool:
    """Show the prediction from model sizes alone, and return whether there is one."""
    if by_rate := predicted.get("speedup_by_acceptance_rate"):
        rates = ", ".join(f"{value}x at {rate}" for rate, value in by_rate.items())
        print_line(f"expected at batch 1 from model sizes, by acceptance rate: {rates}")
    return bool(by_rate)


def _title(predicted: Document) -> str:
    gpus = f"{predicted['gpus']} {predicted['gpu']}"
    texts = f"sequences of {predicted['context_tokens']} tokens, draft_len {predicted['draft_len']}"
    return f"predicted speed-up on {gpus} by batch and acceptance rate; {texts}"


def _table(predicted: Document) -> tuple[list[str], list[list[str]]]:
    by_rate = predicted["by_acceptance_rate"]
    rows = [
        [
            str(each["batch"]),
            f"{each['tokens_per_s']:.0f}",
            *(f"{speedup:.2f}x" for speedup in each["speedup"].values()),
        ]
        for each in predicted["batches"]
    ]
    rows.append(["break-even batch", "", *(str(each["break_even_batch"] or "-") for each in by_rate.values())])
    if any(each["best_draft_len"] for each in by_rate.values()):
        rows.append(["best draft_len", "", *(str(each["best_draft_len"] or "-") for each in by_rate.values())])
    return ["batch", "alone tok/s", *by_rate], rows


def _rows(predicted: Document) -> list[tuple[str, list[tuple[str, float]]]]:
    """Return the rows of the plot: the predicted batches and the break-even batches of each rate."""
    rows = {
        each["batch"]: [(rate[-1], value) for rate, value in each["speedup"].items()] for each in predicted["batches"]
    }
    for rate, each in predicted["by_acceptance_rate"].items():
        batch = each["break_even_batch"]
        if batch and batch not in {each["batch"] for each in predicted["batches"]}:
            rows.setdefault(batch, []).append((rate[-1], 1.0))
    return [(str(batch), marks) for batch, marks in sorted(rows.items())]


def _costs(predicted: Document) -> tuple[list[str], list[list[str]]]:
    costs = {each["batch"]: each["dollars_per_million_tokens"] for each in predicted["batches"]}
    rows = [[str(batch), *(f"{dollars:.2f}" for dollars in cost.values())] for batch, cost in costs.items()]
    return ["batch", *costs[min(costs)]], rows


def _sentences(predicted: Document, max_seq_len: int) -> Iterator[str]:
    if found := predicted["published"]:
        yield f"with the published acceptance: {found['speedup']}x at batch 1 ({found['source']})"
    if schedule := predicted["by_acceptance_rate"]["0.8"]["schedule"]:
        entries = ", ".join(f"{entry['draft_len']} up to {entry['max_batch']}" for entry in schedule)
        yield f"speculation.schedule at an acceptance rate of 0.8: draft_len {entries} requests"
    if (largest := predicted["largest_batch"]) is not None:
        yield f"the memory holds {largest} sequences of {max_seq_len} tokens"
    if placed := predicted["placement"]:
        yield f"the draft is fastest on {placed['best']}: {placed['why']}"
