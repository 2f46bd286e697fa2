# SPDX-License-Identifier: Apache-2.0
"""Generate texts from an artifact in this process, streamed or in a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from trtspec.bench.artifact import artifact_prompts, open_artifact
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineResult, SamplingOptions, Update


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, its result, the seconds from submission to completion, and the acceptance rule."""

    text: str
    result: EngineResult
    seconds: float
    acceptance: str


def generate_one(
    root: Path,
    prompt: str,
    *,
    max_tokens: int,
    sampling: SamplingOptions,
    stop: tuple[str, ...],
    on_text: Callable[[str], None] | None = None,
) -> GeneratedText:
    """Complete one prompt; `on_text` receives the text in increments of whole characters."""
    with open_artifact(root) as artifact:
        updates: SimpleQueue[Update] = SimpleQueue()
        started = time.perf_counter()
        handle = artifact.engine.submit(artifact.request(prompt, max_tokens, sampling, stop=stop), updates.put)
        ids: list[int] = []
        text = ""
        try:
            while True:
                update = updates.get()
                ids += update.new_ids
                # decode all ids again: some tokenizers drop a leading space of the first token that they decode
                before, text = text, artifact.tokenizer.decode(ids)
                if on_text and len(text) > len(before):
                    on_text(text[len(before) :])
                if update.finish_reason:
                    break
        except KeyboardInterrupt:
            handle.cancel()
            raise
        seconds = time.perf_counter() - started
        if update.finish_reason == "error":
            raise TrtspecError(update.error or "the engine failed")
        result = EngineResult(tuple(ids), update.finish_reason, update.stats)
        return GeneratedText(text, result, seconds, artifact.acceptance)


def generate_many(
    root: Path, prompts: Path, *, max_tokens: int, sampling: SamplingOptions, stop: tuple[str, ...]
) -> list[tuple[str, GeneratedText]]:
    """Complete every prompt of a file, batched by the engine; return (prompt id, text) in file order.

    `seconds` is the total for all texts, because they run concurrently.
    """
    loaded = artifact_prompts(root, prompts)
    with open_artifact(root) as artifact:
        requests = [artifact.request(prompt.text, max_tokens, sampling, stop=stop) for prompt in loaded]
        started = time.perf_counter()
        results = artifact.engine.generate(requests)
        seconds = time.perf_counter() - started
        texts = [
            GeneratedText(artifact.tokenizer.decode(result.ids), result, seconds, artifact.acceptance)
            for result in results
        ]
    return [(prompt.name, text) for prompt, text in zip(loaded, texts, strict=True)]
