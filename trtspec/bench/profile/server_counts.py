# SPDX-License-Identifier: Apache-2.0
"""Convert the draft statistics of a server's response to the counts of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.bench.load.sample import RequestSample
from trtspec.bench.profile.acceptance import StepCounts


def counts_from_sample(sample: RequestSample, draft_len: int) -> StepCounts:
    """Return a text's counts for a requested draft length.

    A histogram covers the steps that verified a draft; every other step yields one token, and the prefill yields the
    first.
    """
    drafted, accepted = sample.drafted or 0, sample.accepted or 0
    drafting = sum(sample.histogram)
    steps = max(1, drafting, sample.output_tokens - 1 - accepted)
    if not sample.histogram:
        return StepCounts(steps, drafted, accepted)
    reached = tuple(sum(sample.histogram[place:]) for place in range(1, draft_len + 1))
    missing = _missing(max(0, drafting * draft_len - drafted), [drafting - seen for seen in reached])
    return StepCounts(steps, drafted, accepted, reached, tuple(drafting - few for few in missing))


def _missing(tokens: int, rejected: Sequence[int]) -> list[int]:
    """Estimate how many steps lacked each draft position, given the total number of missing tokens.

    Drafts are shorter at the end of a text, where they are limited by its remaining length, so later positions are
    missing more often. No position is missing in more steps than those that did not accept it.
    """
    found, places = list[int](), range(len(rejected))
    for place in places:
        share = round(tokens * place / max(1, sum(places[place:])))
        found.append(min(rejected[place], max(share, tokens - sum(rejected[place + 1 :]))))
        tokens -= found[-1]
    return found
