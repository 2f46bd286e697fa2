# SPDX-License-Identifier: Apache-2.0
"""The expected speed-up of speculation without measurements.

With an acceptance rate a per token, a step of draft_len k produces (1 - a^(k+1)) / (1 - a) tokens on average. It costs
k draft steps and one step of the target (Leviathan et al. 2023, arXiv:2211.17192, theorem 3.8). A step at batch 1 reads
every weight once, so the relative cost of a draft step is the ratio of the weights' bytes.
"""

from __future__ import annotations


def expected_tokens(acceptance_rate: float, draft_len: int) -> float:
    """Return the mean number of tokens per step."""
    if acceptance_rate >= 1.0:
        return draft_len + 1.0
    return (1.0 - acceptance_rate ** (draft_len + 1)) / (1.0 - acceptance_rate)


def expected_speedup(acceptance_rate: float, draft_len: int, draft_cost: float) -> float:
    """Return the speed-up over the target alone; `draft_cost` is the time of a draft step in target steps."""
    return expected_tokens(acceptance_rate, draft_len) / (draft_len * draft_cost + 1.0)
