# SPDX-License-Identifier: Apache-2.0
"""Sources of an artifact: their location, a comparison with copied files, and prompts that the draft was trained on.

`trtspec train` writes the digests of the training prompts' tokens next to the published draft. Measuring on training
prompts overstates the draft's acceptance. The record is read from the draft's source location, so it is missing for
artifacts that were built on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.bench.artifact import TARGET
from trtspec.bench.gates import NO_SOURCE, SkippedCheck, VerificationCheck
from trtspec.checkpoints.resolve import locate_source
from trtspec.checkpoints.safe_json import parse_object
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import map_in_threads, read_bounded
from trtspec.core.hashing import file_digests
from trtspec.store.artifact import Manifest, load_manifest
from trtspec.store.artifact_cache import find_source_location
from trtspec.store.artifact_paths import TOKENIZER, checkpoint
from trtspec.store.file_records import FileRecord

HINT = "give its location with --source DIR"
RECORD = "trtspec_training.json"
DIGESTS = "prompt_digests"
DIGITS = 16  # number of hex digits of a SHA-256, enough to distinguish a million prompts
MAX_BYTES, MAX_VALUES = 32 << 20, 1_000_000
OTHER_PROMPTS = "acceptance on other prompts may be lower; measure with held-out prompts (--prompts FILE)"


def find_source(root: Path, manifest: Manifest, given: Path | None) -> Path:
    """Return the directory of the target's source checkpoint, after validating its config and headers.

    Raises TrtspecError if the source is missing or has another vocabulary size than the artifact.
    """
    try:
        source = load_source(given or source_location(root, manifest, "target"))
        theirs, ours = source.reader.positive("vocab_size"), load_checkpoint(root / TARGET).config.vocab_size
    except CheckpointError as error:
        message = f"the source of the target cannot be read: {error.message}"
        raise TrtspecError(message, where=error.where, hint=HINT) from None
    if theirs != ours:
        message = f"not the artifact's source: it has {theirs} vocabulary entries, the artifact has {ours}"
        raise TrtspecError(message, where=str(source.root))
    return source.root


def source_location(root: Path, manifest: Manifest, role: str) -> Path:
    """Return the directory that a model was built from; CheckpointError if this machine has no record of it.

    `role` is "target" or "draft".
    """
    model = manifest.recipe.models[role]
    if model.revision:
        return locate_source(model)
    directory = find_source_location(manifest, role)
    if directory is None:
        raise CheckpointError(
            "the artifact was built elsewhere, and its manifest records no source location",
            where=str(root),
            hint="build it here, or use Hugging Face Hub models in the recipe",
        )
    return locate_source(model.model_copy(update={"model": directory}))


def check_sources(root: Path, manifest: Manifest, given: Path | None) -> VerificationCheck | SkippedCheck:
    """Compare the artifact's copied checkpoints with their sources, file by file; `given` is the target's source.

    Files that the backend's build may change are counted apart. The check is skipped if a source is not at its recorded
    location. Raises TrtspecError if `given` is not a directory.
    """
    if given and not given.is_dir():
        raise TrtspecError("no such directory", where=str(given), hint=HINT)
    pairs: list[tuple[Path, FileRecord]] = []
    rewritten: set[str] = set()
    backend = find_backend(manifest.backend.name)
    for role in manifest.recipe.models:
        folders = (f"{checkpoint(role)}/", *([f"{TOKENIZER}/"] if role == "target" else []))
        copies = [record for record in manifest.files if record.path.startswith(folders)]
        if not copies:
            continue
        try:
            source = given if given and role == "target" else source_location(root, manifest, role)
        except CheckpointError as error:
            why = f"the source of the {role} was not found ({error.message}): {HINT}"
            return SkippedCheck("sources", NO_SOURCE, why)
        pairs += [(source / Path(record.path).name, record) for record in copies]
        patterns = [f"{checkpoint(role)}/{name}" for name in backend.rewritten(manifest.recipe, role)]
        rewritten |= {each.path for each in copies if any(fnmatchcase(each.path, pattern) for pattern in patterns)}
    differing = [
        (record.path, why) for (_, record), why in zip(pairs, map_in_threads(_difference, pairs), strict=True) if why
    ]
    problems = [why for path, why in differing if path not in rewritten]
    changed = [path for path, _ in differing if path in rewritten]
    detail = f"{len(pairs) - len(differing)} files are byte-identical to the sources"
    detail = "; ".join(problems[:3]) or detail + (f"; changed by the build: {', '.join(changed)}" if changed else "")
    return VerificationCheck("sources", not problems, len(pairs) - len(problems), len(pairs), detail)


def _difference(pair: tuple[Path, FileRecord]) -> str | None:
    source, record = pair
    try:
        return None if file_digests([source]) == [record.digest] else f"{record.path}: differs from {source}"
    except OSError as error:
        return f"{record.path}: {source} cannot be read: {error.strerror}"


def prompt_digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:DIGITS]


def overlap(root: Path, texts: Iterable[str], manifest: Manifest | None = None) -> str:
    """Return a sentence on the number of prompts that the draft was trained on, or "" if none is known."""
    trained_on = _training_digests(root, manifest or load_manifest(root))
    if not trained_on:
        return ""
    tokenizer, texts = Tokenizer(root / TOKENIZER), list(texts)
    shared = sum(prompt_digest(tokenizer.encode(text)) in trained_on for text in texts)
    prompts = f"{shared} of {len(texts)} prompts are among the draft's {len(trained_on)} training prompts"
    return prompts if shared else ""


def _training_digests(root: Path, manifest: Manifest) -> frozenset[str]:
    """Return the digests of the training prompts; empty if the draft's record is missing or unreadable."""
    if "draft" not in manifest.recipe.models:
        return frozenset()
    try:
        found = parse_object(read_bounded(source_location(root, manifest, "draft") / RECORD, MAX_BYTES), MAX_VALUES)
    except (TrtspecError, OSError, ValueError):
        return frozenset()
    digests = found.get(DIGESTS)
    return frozenset(each for each in digests if isinstance(each, str)) if isinstance(digests, list) else frozenset()
