# SPDX-License-Identifier: Apache-2.0
"""Triton's warm-up requests for an engine: a prefill and steps with drafts, for one text and for a full batch.

An engine that drafts inside drafts in each step. An engine that verifies external drafts gets one with the prompt.
"""

from __future__ import annotations

from trtspec.serving.triton.warmup import WarmupSample

PROMPT_LEN = 16
PERIOD = 4  # a repetitive prompt, for which lookahead can draft
STEPS = 2
TOKEN = 1  # the first token id: 0 is often an end id


def samples(max_batch_size: int, max_seq_len: int, draft_len: int, drafted_outside: int) -> tuple[WarmupSample, ...]:
    """Return an engine's samples; lengths are in tokens, `drafted_outside` is the number of external draft tokens."""
    prompt = [TOKEN + place % PERIOD for place in range(max(1, min(PROMPT_LEN, max_seq_len - STEPS * (draft_len + 1))))]
    text = {"input_ids": prompt, "input_lengths": [len(prompt)], "request_output_len": [STEPS * (draft_len + 1)]}
    kinds = {"texts": text}
    if drafted_outside:
        draft = [TOKEN + place % PERIOD for place in range(drafted_outside)]
        kinds["drafts"] = text | {"draft_input_ids": draft, "request_output_len": [drafted_outside + 1]}
    sizes = dict.fromkeys((1, max_batch_size))
    return tuple(WarmupSample(f"{size}-{kind}", size, inputs) for kind, inputs in kinds.items() for size in sizes)
