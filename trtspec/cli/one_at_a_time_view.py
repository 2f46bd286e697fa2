# SPDX-License-Identifier: Apache-2.0
"""Terminal output of a benchmark with one request at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trtspec.cli.render import print_command, print_line, show_table

if TYPE_CHECKING:
    from trtspec.bench.bench import BenchComparison


def show_comparison(comparison: BenchComparison, what: str) -> None:
    """Show the table, and for a server a curl command."""
    sides = (
        ("target alone", 1.0, comparison.baseline),
        ("speculative", comparison.speedup.median, comparison.speculative),
    )
    rows = [
        (
            name,
            f"{side.median:.0f}",
            f"{speedup:.2f}x",
            f"{side.stats.acceptance_rate:.3f}" if side.stats.drafted else "-",
            f"{side.stats.mean_accepted_len:.2f}" if side.stats.drafted or name == "target alone" else "-",
        )
        for name, speedup, side in sides
    ]
    columns = ("", "tokens/s", "speed-up", "acceptance rate", "mean accepted length")
    show_table(
        f"{what}: {comparison.prompts} prompts, {comparison.max_tokens} tokens each", columns, rows, (1, 2, 3, 4)
    )
    if comparison.acceptance == "typical":
        print_line("typical acceptance is lossy: sampled text differs from the target's", "yellow")
    if what.startswith("http://"):
        body = json.dumps({"text_input": '{"id": 7, "name":', "max_tokens": 32})
        print_command("try it", f"curl -s {what.rstrip('/')}/v2/models/ensemble/generate -d '{body}'")
    print_line(f"with speculation {comparison.speedup}")
    same, total = comparison.identical_texts, comparison.prompts
    print_line(
        f"identical text: {'yes' if same == total else 'NO'} ({same} of {total})", "green" if same == total else "red"
    )
