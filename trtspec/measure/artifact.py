# SPDX-License-Identifier: Apache-2.0
"""An artifact, opened for measuring: its manifest, its tokenizer and its engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.artifacts.manifest import MANIFEST, Manifest, load_manifest, verify_files
from trtspec.artifacts.prompts import Prompt, load_prompts
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.generation.request import EngineSettings, Request, Sampling
from trtspec.errors import DigestMismatch, TrtspecError

if TYPE_CHECKING:
    from trtspec.torch_engine.engine import Engine

TARGET, DRAFT = "checkpoints/target", "checkpoints/draft"
# Engines that run a source as it is: their artifacts hold nothing that the embedded engine reads.
ELSEWHERE = ("llmapi", "vllm")
DEFAULT_PROMPTS = Path(__file__).with_name("default_prompts.jsonl")


@dataclass(frozen=True)
class OpenArtifact:
    """A loaded artifact; `tokenizer` is the target's."""

    root: Path
    manifest: Manifest
    tokenizer: Tokenizer
    engine: Engine

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the recipe as it was resolved."""
        return self.manifest.recipe

    @property
    def acceptance(self) -> str:
        """Return the rule that drafts are accepted by: "exact", or one that changes the text."""
        return acceptance_of(self.manifest)

    def request(self, prompt: str, max_tokens: int, sampling: Sampling | None = None, **options: Any) -> Request:
        """Return a request for the text of a prompt, ended by the model's own end tokens."""
        ids = tuple(self.tokenizer.encode(prompt))
        return Request(ids, max_tokens, sampling or Sampling(), end_ids=self.tokenizer.end_ids, **options)


def acceptance_of(manifest: Manifest) -> str:
    """Return the rule that an artifact accepts drafts by; TrtspecError where its manifest names none."""
    try:
        return str(manifest.recipe["speculation"]["acceptance"])
    except (KeyError, TypeError):
        raise TrtspecError("its manifest names no acceptance rule", hint="build the artifact again") from None


def read_artifact(root: Path) -> Manifest:
    """Return an artifact's manifest, all its files hashed; raises TrtspecError where it is none, or damaged."""
    manifest = load_manifest(root)
    if problems := verify_files(root, manifest):
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DigestMismatch("; ".join(problems[:3]) + more, where=str(root), hint="build it again")
    return manifest


@contextmanager
def open_artifact(root: Path, manifest: Manifest | None = None) -> Iterator[OpenArtifact]:
    """Load what an artifact was converted to into the embedded engine, whichever engine it is for.

    `read_artifact` comes first unless its `manifest` is handed in. Raises TrtspecError where nothing was converted.
    """
    from trtspec.torch_engine.engine import Engine

    manifest = manifest or read_artifact(root)
    if manifest.backend.name in ELSEWHERE:
        hint = "trtspec deploy it, then trtspec bench its name"
        raise TrtspecError(
            f"{manifest.backend.name} runs this artifact, and not in this process", where=str(root), hint=hint
        )
    draft = root / DRAFT
    tokenizer = root / "tokenizer"
    opened = Engine.load(root / TARGET, draft if draft.is_dir() else None, _settings(root, manifest.recipe), tokenizer)
    try:
        yield OpenArtifact(root, manifest, Tokenizer(tokenizer), opened)
    finally:
        opened.close()


def _settings(root: Path, recipe: dict[str, Any]) -> EngineSettings:
    from trtspec.kernels.rules import libraries_of

    try:
        engine, speculation = recipe["engine"], recipe["speculation"]
        return EngineSettings(
            method=speculation["method"],
            draft_len=speculation["draft_len"],
            options=speculation["options"],
            max_batch_size=engine["max_batch_size"],
            max_seq_len=engine["max_seq_len"],
            max_input_len=engine["max_input_len"],
            max_num_tokens=engine["max_num_tokens"],
            max_queue_size=recipe["serving"]["max_queue_size"],
            kernels=libraries_of(root),
        )
    except (KeyError, TypeError) as error:
        where = str(root / MANIFEST)
        raise TrtspecError(f"its recipe lacks {error}", where=where, hint="build the artifact again") from None


def artifact_prompts(root: Path | None, given: Path | None) -> list[Prompt]:
    """Return the prompts to measure on: those given, else the artifact's own, else a small general set."""
    own = next(iter(sorted((root / "prompts").glob("*.jsonl"))), None) if root else None
    return load_prompts(given or own or DEFAULT_PROMPTS)
