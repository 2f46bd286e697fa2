# SPDX-License-Identifier: Apache-2.0
"""Format the results of the torch engine's benchmark as lines of text."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.measures import AGREEMENT_WIDTH


def table(found: dict[str, Any]) -> list[str]:
    """Return the most important results, one line each."""
    lines = [f"a copy moves {found['machine']['copy_bytes_per_s'] / 1e9:.0f} GB/s; rules: {found['rules']}"]
    for row in found.get("alone", []):
        share = f"{row['read_bytes_per_s'] / 1e9:.0f} GB/s, {row['share_of_copy']:.0%} of a copy's"
        lines.append(
            f"alone, {row['how']:<8} b{row['batch']:<3} {row['ms']:8.2f} ms {row['tokens_per_s']:9.0f} tok/s  {share}"
        )
    for row in found.get("over_drafts", []):
        lines.append(
            f"{row['draft_len']} drafted    b{row['batch']:<3} {row['ms']:8.2f} ms"
            f" {row['of_one_token']:7.2f}x one token"
        )
    for row in found.get("forward", []):
        replayed = f"{row['replayed_ms']:8.2f} replayed" if "replayed_ms" in row else ""
        lines.append(f"forward of {row['width']:<3} b{row['batch']:<3} {row['launched_ms']:8.2f} ms {replayed}")
    for row in found.get("set_acceptance", []):
        how = f"acceptance {row['acceptance']} set, {row['drafts']}"
        lines.append(f"{how:<34} b{row['batch']:<3} {row['tokens_per_s']:9.0f} tok/s {row['speed_up']:6.2f}x")
    for row in found.get("small_model", []):
        lines.append(f"small model drafts {row['draft_len']}  b{row['batch']:<3} {row['ms']:8.2f} ms a step")
    if "agreement" in found:
        lines.append(f"argmax of {AGREEMENT_WIDTH} tokens at once is that of one: {found['agreement']['share']:.1%}")
    return lines + [f"{name}: {why}" for name, why in found.get("failed", {}).items()]
