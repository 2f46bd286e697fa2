# SPDX-License-Identifier: Apache-2.0
"""What an engine computes before its first request, so that no client waits for what only the first one needs.

Kernels are loaded and chosen, memory is taken and threads are started by the first computation of a kind: a prefill, a
draft, a verification, of one text and of as many as run at once, greedy and sampled.
"""

from __future__ import annotations

import logging
import time

from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import Request, SamplingOptions
from trtspec.engine.settings import EngineSettings

PROMPT_LEN = 16
PERIOD = 4  # a prompt that repeats itself is one that its own text can draft for
STEPS = 2  # with a draft each, whatever is accepted

log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Compute all that; raises TrtspecError where the engine cannot, as for want of memory."""
    for batch in warmup_batches(engine.settings, engine.vocab_size):
        begun = time.monotonic()
        engine.generate(batch)
        log.info("warmed up with %d texts in %.2f s", len(batch), time.monotonic() - begun)


def warmup_batches(settings: EngineSettings, vocab_size: int) -> list[list[Request]]:
    """Return the requests of each batch: one, and as many as the engine runs at once; every second one samples."""
    longest = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - 1)
    prompt = tuple(1 % vocab_size + place % PERIOD % (vocab_size - 1) for place in range(min(PROMPT_LEN, longest)))
    new_tokens = min(STEPS * (settings.draft_len + 1), settings.max_seq_len - len(prompt))
    ways = [SamplingOptions(), SamplingOptions(temperature=1.0)]
    sizes = [1, settings.max_batch_size] if settings.max_batch_size > 1 else [1]
    return [[Request(prompt, new_tokens, ways[row % 2]) for row in range(size)] for size in sizes]
