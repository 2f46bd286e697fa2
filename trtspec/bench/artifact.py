# SPDX-License-Identifier: Apache-2.0
"""Loading of an artifact into this process with its manifest, tokenizer and engine, and text generation with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from trtspec.backends.base import find_backend
from trtspec.backends.code_policy import check_code
from trtspec.checkpoints.tokenizer import RenderedText, Tokenizer
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import read_bounded
from trtspec.core.paths import default_prompts
from trtspec.engine.generation.model_defaults import MODEL, ModelDefaults, load_model_defaults
from trtspec.engine.generation.request import Constraint, EngineRequest, EngineResult, SamplingOptions, Update
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.engine.settings import EngineSettings
from trtspec.engine.simulated_acceptance import SIMULATED
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS, ENSEMBLE
from trtspec.store.artifact import Manifest, load_manifest
from trtspec.store.artifact_cache import verify_changed
from trtspec.store.artifact_paths import PROMPTS, REPOSITORY, TOKENIZER, checkpoint

if TYPE_CHECKING:
    from trtspec.engine.engine import Engine

TARGET, DRAFT = checkpoint("target"), checkpoint("draft")


@dataclass(frozen=True)
class OpenArtifact:
    """An artifact whose engine is loaded in this process; `tokenizer` is the target's."""

    root: Path
    manifest: Manifest
    tokenizer: Tokenizer
    engine: Engine

    @property
    def recipe(self) -> ResolvedRecipe:
        return self.manifest.recipe

    @property
    def acceptance(self) -> str:
        """Return the acceptance rule: "exact", the name of a lossy rule, or "simulated"."""
        return SIMULATED if self.manifest.simulated_acceptance else self.recipe.speculation.acceptance

    def request(
        self, prompt: str, max_tokens: int, sampling: SamplingOptions | None = None, **options: Any
    ) -> EngineRequest:
        """Create a request for a text prompt; generation stops at the model's end-of-text tokens."""
        return self.request_for_ids(tuple(self.tokenizer.encode(prompt)), max_tokens, sampling, **options)

    def request_for_ids(
        self, ids: tuple[int, ...], max_tokens: int, sampling: SamplingOptions | None = None, **options: Any
    ) -> EngineRequest:
        """Create a request for prompt tokens, with the model's penalties if the recipe takes the model's defaults."""
        edits = {"edits": self.defaults.edits_for(len(ids))} if self.takes_model_defaults else {}
        options = {"end_ids": self.tokenizer.end_ids, **edits, **options}
        return EngineRequest(ids, max_tokens, sampling or SamplingOptions(), **options)

    def respond(
        self, prompts: Sequence[str], max_tokens: int, on_done: Callable[[int, int], None]
    ) -> list[tuple[tuple[int, ...], EngineResult]]:
        """Return the prompt tokens and the greedy response of each prompt, in batches of the engine's maximum size.

        `on_done` is called with the numbers of responses and of prompts.
        """
        rows, found = self.engine.settings.max_batch_size, list[tuple[tuple[int, ...], EngineResult]]()
        for start in range(0, len(prompts), rows):
            requests = [self.request(prompt, max_tokens) for prompt in prompts[start : start + rows]]
            results = self.engine.generate(requests)
            found += [(request.prompt_ids, result) for request, result in zip(requests, results, strict=True)]
            on_done(len(found), len(prompts))
        return found

    @property
    def takes_model_defaults(self) -> bool:
        """Return True if omitted request fields take the defaults of the model's generation_config.json."""
        return self.recipe.serving.defaults == MODEL

    @cached_property
    def defaults(self) -> ModelDefaults:
        """Return the request defaults of the model's generation_config.json."""
        return load_model_defaults(self.root / TOKENIZER)


def read_artifact(root: Path, expected: str = "") -> Manifest:
    """Check an artifact's files and return its manifest.

    `expected` is the required SHA-256 of the manifest, or "". Raises TrtspecError if the artifact is missing or
    damaged, contains code that trtspec did not generate, or accepts drafts by simulation.
    """
    manifest = load_manifest(root, expected)
    manifest.check_not_simulated(root)
    problems, _ = verify_changed(root, manifest)
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DigestMismatch("; ".join(problems[:3]) + more, where=str(root), hint="build it again")
    check_code(root, manifest)
    return manifest


@contextmanager
def open_artifact(root: Path, manifest: Manifest | None = None) -> Iterator[OpenArtifact]:
    """Load the converted checkpoints into the torch engine, whichever engine the artifact was built for.

    Calls `read_artifact` unless `manifest` is given. Raises TrtspecError if the artifact's backend does not convert
    checkpoints.
    """
    from trtspec.engine.engine import Engine

    manifest = manifest or read_artifact(root)
    if not find_backend(manifest.backend.name).converts:
        hint = "deploy it with trtspec deploy, then use its server or run trtspec bench NAME"
        raise TrtspecError(f"{manifest.backend.name} runs in a server, not in this process", where=str(root), hint=hint)
    draft = root / DRAFT
    tokenizer = root / TOKENIZER
    settings = engine_settings(root, manifest.recipe)
    settings = replace(settings, simulated_acceptance=manifest.simulated_acceptance)
    opened = Engine(root / TARGET, draft if draft.is_dir() else None, settings, tokenizer)
    try:
        yield OpenArtifact(root, manifest, Tokenizer(tokenizer), opened)
    finally:
        opened.close()


def engine_settings(root: Path, recipe: ResolvedRecipe) -> EngineSettings:
    """Return the torch engine's settings for an artifact, including the artifact's compiled kernels.

    The prefix cache is off, because measurements repeat the same prompts with different drafts.
    """
    from trtspec.kernels.verifier import candidate_libraries

    return replace(EngineSettings.from_recipe(recipe), kernels=candidate_libraries(root), keeps_texts=False)


def artifact_prompts(root: Path | None, given: Path | None) -> list[Prompt]:
    """Load the prompts to measure on: the file `given`, else the artifact's prompts, else the default prompts.

    Messages are rendered with the artifact's chat template, if it has one.
    """
    own = next(iter(sorted((root / PROMPTS).glob("*"))), None) if root else None
    prompts = load_prompts(given or own or default_prompts(), root / TOKENIZER if root else None)
    return _as_sent(prompts, root) if root else prompts


def _as_sent(prompts: list[Prompt], root: Path) -> list[Prompt]:
    """Return the prompts in the form in which clients send them to the artifact's server.

    If the server's engine tokenizes prompts itself, it adds special tokens to every text, so rendered chats are sent
    without special tokens. Raises TrtspecError for a chat prompt that this would change.
    """
    config = root / REPOSITORY / ENSEMBLE / "config.pbtxt"
    if not any(isinstance(prompt.text, RenderedText) for prompt in prompts):
        return prompts
    if not config.is_file() or f'"{ADD_SPECIAL_TOKENS}"' in read_bounded(config, 1 << 20).decode():
        return prompts
    tokenizer, found = Tokenizer(root / TOKENIZER), []
    for prompt in prompts:
        text = tokenizer.as_plain(prompt.text) if isinstance(prompt.text, RenderedText) else prompt.text
        if text is None:
            message = f"prompt {prompt.name}: the engine adds special tokens, which the chat template lacks"
            raise TrtspecError(message, where=str(root), hint="use prompts that are texts instead of messages")
        found.append(replace(prompt, text=text))
    return found


@dataclass(frozen=True)
class GeneratedText:
    """A generated text with its engine result, the acceptance rule, and the seconds from submission to completion."""

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
    constraint: Constraint | None = None,
    on_text: Callable[[str], None] | None = None,
) -> GeneratedText:
    """Generate the response to one prompt; `on_text` is called with increments of whole characters."""
    with open_artifact(root) as artifact:
        updates: SimpleQueue[Update] = SimpleQueue()
        started = time.perf_counter()
        request = artifact.request(prompt, max_tokens, sampling, stop=stop, constraint=constraint)
        handle = artifact.engine.submit(request, updates.put)
        ids: list[int] = []
        text = ""
        try:
            while True:
                update = updates.get()
                ids += update.new_ids
                # Decode all ids again, because some tokenizers drop the leading space of the first token they decode.
                before, text = text, artifact.tokenizer.decode(ids)
                if on_text and len(text) > len(before):
                    on_text(text[len(before) :])
                if update.finish_reason:
                    break
        except KeyboardInterrupt:
            handle.cancel()
            raise
        seconds = time.perf_counter() - started
        if update.finish_reason in ("error", "refused"):
            raise update.refusal or TrtspecError(update.error or "the engine failed")
        result = EngineResult(tuple(ids), update.finish_reason, update.stats)
        return GeneratedText(text, result, seconds, artifact.acceptance)


def generate_many(
    root: Path,
    prompts: Path,
    *,
    max_tokens: int,
    sampling: SamplingOptions,
    stop: tuple[str, ...],
    constraint: Constraint | None = None,
) -> list[tuple[str, GeneratedText]]:
    """Generate the responses to all prompts of a file in batches; return (prompt id, text) pairs in file order.

    `seconds` of each text is the total time of all texts, because they run concurrently.
    """
    loaded = artifact_prompts(root, prompts)
    with open_artifact(root) as artifact:
        options: dict[str, Any] = {"stop": stop, "constraint": constraint}
        requests = [artifact.request(prompt.text, max_tokens, sampling, **options) for prompt in loaded]
        started = time.perf_counter()
        results = artifact.engine.generate(requests)
        seconds = time.perf_counter() - started
        texts = [
            GeneratedText(artifact.tokenizer.decode(result.ids), result, seconds, artifact.acceptance)
            for result in results
        ]
    return [(prompt.name, text) for prompt, text in zip(loaded, texts, strict=True)]
