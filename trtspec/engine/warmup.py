# SPDX-License-Identifier: Apache-2.0
"""Warm-up of an engine, so that the first client does not wait for one-time work.

The first prefill, draft and verification load and select kernels, allocate memory and start threads. The warm-up runs
them for one request and for a full batch, greedy and sampled.
"""

from __future__ import annotations

import logging
import time

from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.settings import EngineSettings

PROMPT_LEN = 16
PERIOD = 4  # the prompt repeats itself, so that n-gram drafters find matches
STEPS = 2  # decode steps with a draft, regardless of acceptance

log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Run the warm-up batches; raise TrtspecError if the engine fails, for example because memory is exhausted."""
    for batch in warmup_batches(engine.settings, engine.vocab_size):
        begun = time.monotonic()
        engine.generate(batch)
        log.info("warmed up with %d texts in %.2f s", len(batch), time.monotonic() - begun)


def warmup_batches(settings: EngineSettings, vocab_size: int) -> list[list[EngineRequest]]:
    """Return the requests of each batch: a single request, and a full batch in which every second request samples."""
    longest = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - 1)
    prompt = tuple(1 % vocab_size + at % PERIOD % (vocab_size - 1) for at in range(min(PROMPT_LEN, longest)))
    new_tokens = min(STEPS * (settings.draft_len + 1), settings.max_seq_len - len(prompt))
    sampling = [SamplingOptions(), SamplingOptions(temperature=1.0)]
    sizes = [1, settings.max_batch_size] if settings.max_batch_size > 1 else [1]
    return [[EngineRequest(prompt, new_tokens, sampling[row % 2]) for row in range(size)] for size in sizes]
