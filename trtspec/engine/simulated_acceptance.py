# SPDX-License-Identifier: Apache-2.0
"""Forced acceptance of drafts for capacity tests: its specification, without torch.

Acceptance is given by one rate per position of a draft: the share of steps that accept at least that many draft tokens.
These are unconditional rates, as in vLLM's `synthetic_acceptance_rates`
(vllm-project/vllm:vllm/config/speculative.py@v0.32.0). A mean accepted length becomes the rates with the smallest
variance: all steps accept its whole part, and its fraction is the rate of one further position.

Texts that were generated with forced acceptance are not the target's, so they must never reach a user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.core.errors import TrtspecError

HINT = "a mean accepted length such as 2.7, or the rate of every position such as 0.8,0.6,0.4"
SIMULATED = "simulated"  # the acceptance rule, and the mark in names and labels


def parse_simulated_acceptance(text: str, draft_len: int) -> tuple[float, ...]:
    """Return the acceptance rate of each of the `draft_len` positions, none of which is above the one before.

    Raises TrtspecError for anything but a mean accepted length in [1, draft_len + 1] or one rate per position.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise TrtspecError(f"{text!r} is not a simulated acceptance", hint=HINT) from None
    if len(numbers) == 1 and numbers[0] >= 1:
        return _rates_of_length(numbers[0], draft_len)
    if len(numbers) != draft_len:
        raise TrtspecError(
            f"{text!r} has {len(numbers)} acceptance rates, but {draft_len} tokens are drafted", hint=HINT
        )
    if not all(0 <= rate <= 1 for rate in numbers) or numbers != sorted(numbers, reverse=True):
        raise TrtspecError(f"{text!r}: rates must be between 0 and 1, and none above the one before", hint=HINT)
    return tuple(numbers)


def mean_accepted_len(rates: Sequence[float]) -> float:
    """Return the mean tokens per step: the accepted draft tokens and the target's own token."""
    return 1 + sum(rates)


def describe_simulation(rates: Sequence[float], measured: float | None) -> dict[str, Any]:
    """Return the mark of a document: the forced rates, and the requested and the measured mean accepted length."""
    return {
        SIMULATED: {"acceptance_rates": [*rates], "mean_accepted_len": mean_accepted_len(rates), "measured": measured}
    }


def mark_method(method: str, rates: Sequence[float]) -> str:
    """Return a method's name for labels and records; it is marked if acceptance is simulated with these rates."""
    return f"{method} ({SIMULATED})" if rates else method


def _rates_of_length(length: float, draft_len: int) -> tuple[float, ...]:
    if not length <= draft_len + 1:  # also not a number
        raise TrtspecError(f"a step of {draft_len} draft tokens yields at most {draft_len + 1} tokens", hint=HINT)
    whole = int(length - 1)
    rates = [1.0] * whole + [round(length - 1 - whole, 9)] + [0.0] * draft_len
    return tuple(rates[:draft_len])
