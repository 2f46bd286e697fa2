# SPDX-License-Identifier: Apache-2.0
"""What Triton asks an engine before it is ready: a prefill and steps with their drafts, one text and a full batch.

An engine that drafts by itself does so in each step. One that verifies drafts from outside gets one with the prompt.
"""

from __future__ import annotations

from trtspec.serving.triton.warmup import Sample

PROMPT_LEN = 16
PERIOD = 4  # a prompt that repeats itself is one that an engine can look ahead in
STEPS = 2
TOKEN = 1  # token ids begin there: 0 is often an end


def samples(max_batch_size: int, max_seq_len: int, draft_len: int, drafted_outside: int) -> tuple[Sample, ...]:
    """Return the samples of an engine; lengths are in tokens, `drafted_outside` is what comes with a request, or 0."""
    prompt = [TOKEN + place % PERIOD for place in range(max(1, min(PROMPT_LEN, max_seq_len - STEPS * (draft_len + 1))))]
    text = {"input_ids": prompt, "input_lengths": [len(prompt)], "request_output_len": [STEPS * (draft_len + 1)]}
    kinds = {"texts": text}
    if drafted_outside:
        draft = [TOKEN + place % PERIOD for place in range(drafted_outside)]
        kinds["drafts"] = text | {"draft_input_ids": draft, "request_output_len": [drafted_outside + 1]}
    sizes = dict.fromkeys((1, max_batch_size))
    return tuple(Sample(f"{size}-{kind}", size, inputs) for kind, inputs in kinds.items() for size in sizes)
