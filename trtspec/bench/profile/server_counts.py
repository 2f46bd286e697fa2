# SPDX-License-Identifier: Apache-2.0
"""What a server tells of a text's drafts, as the counts that a profile is made of."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.bench.load.sample import Sample
from trtspec.bench.profile.acceptance import Counts


def counts_of(sample: Sample, draft_len: int) -> Counts:
    """Return a text's counts, of a server that was asked for so many draft tokens.

    A histogram tells of the steps that verified a draft; a text's other steps gave one token each, and its first token
    is the prefill's.
    """
    drafted, accepted = sample.drafted or 0, sample.accepted or 0
    drafting = sum(sample.histogram)
    steps = max(1, drafting, sample.output_tokens - 1 - accepted)
    if not sample.histogram:
        return Counts(steps, drafted, accepted)
    reached = tuple(sum(sample.histogram[place:]) for place in range(1, draft_len + 1))
    missing = _missing(max(0, drafting * draft_len - drafted), [drafting - seen for seen in reached])
    return Counts(steps, drafted, accepted, reached, tuple(drafting - few for few in missing))


def _missing(tokens: int, rejected: Sequence[int]) -> list[int]:
    """Return at how many steps each place of a draft was not drafted, which is told of all places together.

    Drafts are shorter at the end of a text, each as long as what is left of it: the later a place, the more lack it.
    No place lacks more than the steps that did not accept it.
    """
    found, places = list[int](), range(len(rejected))
    for place in places:
        share = round(tokens * place / max(1, sum(places[place:])))
        found.append(min(rejected[place], max(share, tokens - sum(rejected[place + 1 :]))))
        tokens -= found[-1]
    return found
