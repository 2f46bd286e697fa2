# SPDX-License-Identifier: Apache-2.0
"""Locate the sources of an artifact, and check that copied files still match them."""

from __future__ import annotations

import os
from pathlib import Path

from trtspec.bench.artifact import TARGET
from trtspec.bench.verification_report import NO_SOURCE, SkippedCheck, VerificationCheck
from trtspec.checkpoints.resolve import locate_source
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.file_records import FileRecord
from trtspec.core.files import map_in_threads
from trtspec.core.hashing import file_sha256
from trtspec.store.artifact_paths import TOKENIZER, checkpoint
from trtspec.store.manifest import Manifest
from trtspec.store.source_locations import find_source_location

HINT = "give its location with --source DIR"


def find_source(root: Path, manifest: Manifest, given: Path | None) -> Path:
    """Return the directory of the target's source after validating its config and headers.

    Raises TrtspecError if it is missing or holds another model.
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
    """Return the location that a model was built from; manifests of earlier versions record it themselves."""
    model = manifest.recipe.models[role]
    if model.revision or os.path.isabs(model.model):
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

    Skipped if a source is not at its recorded location and none is given. Raises TrtspecError if `given` is not a
    directory.
    """
    if given and not given.is_dir():
        raise TrtspecError("no such directory", where=str(given), hint=HINT)
    pairs: list[tuple[Path, FileRecord]] = []
    for role in manifest.recipe.models:
        folders = (f"{checkpoint(role)}/", *([f"{TOKENIZER}/"] if role == "target" else []))
        copies = [record for record in manifest.files if record.path.startswith(folders)]
        try:
            source = (
                given if given and role == "target" else source_location(root, manifest, role) if copies else Path()
            )
        except CheckpointError as error:
            return SkippedCheck(
                "sources", NO_SOURCE, f"the source of the {role} was not found ({error.message}): {HINT}"
            )
        pairs += [(source / Path(record.path).name, record) for record in copies]
    return _compare(pairs)


def _compare(pairs: list[tuple[Path, FileRecord]]) -> VerificationCheck:
    problems = [found for found in map_in_threads(_difference, pairs) if found]
    detail = "; ".join(problems[:3]) or f"{len(pairs)} files are byte-identical to the sources"
    return VerificationCheck("sources", not problems, len(pairs) - len(problems), len(pairs), detail)


def _difference(pair: tuple[Path, FileRecord]) -> str | None:
    source, record = pair
    try:
        return None if file_sha256(source) == record.sha256 else f"{record.path}: differs from {source}"
    except OSError as error:
        return f"{record.path}: {source} cannot be read: {error.strerror}"
