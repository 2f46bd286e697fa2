# SPDX-License-Identifier: Apache-2.0
"""The SLSA provenance of a build: an in-toto statement about the artifact's manifest.

docs/signatures.md describes the build type. Sources: slsa-framework/slsa:docs/spec/v1.1/provenance.md@v1.1, and
in-toto/attestation:spec/v1/resource_descriptor.md@v1.2.0. The provenance has times, so it is not part of the manifest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.backends.context import PlanContext, hub_revision, recipe_models
from trtspec.core.diagnostics import mask_tokens
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.yaml_tree import walk
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.executor import StepResult
from trtspec.store.files import Files
from trtspec.store.signatures.envelope import PROVENANCE, SubjectName, render_statement

BUILD_TYPE = "urn:trtspec:build:1"
LOCAL_BUILDER = "urn:trtspec:builder:local"
BUILDER = "TRTSPEC_BUILDER_ID"
HUB = "https://huggingface.co"
SET = "--set "  # begins the name of an override's text


def render_provenance(
    loaded: LoadedRecipe,
    context: PlanContext,
    files: Sequence[Files],
    manifest: Manifest,
    digest: str,
    results: Sequence[StepResult],
    times: tuple[datetime, datetime],
    environment: Mapping[str, str] = os.environ,
) -> bytes:
    """Return the provenance of an artifact whose manifest has the SHA-256 `digest`.

    `files` are the files that the steps read, and `times` the beginning and the end of the build.
    """
    started, finished = times
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "recipe": manifest.recipe.as_dict(),
                "set": sorted({each.removeprefix(SET) for each in _origins(loaded) if each.startswith(SET)}),
            },
            "internalParameters": {
                "backend": {**manifest.backend.model_dump(), "version": manifest.recipe.engine.version or ""},
                "tools": manifest.tools,
                "gpu": manifest.gpu,
                "steps": [_describe_step(result) for result in results],
            },
            "resolvedDependencies": [*_recipe_files(loaded), *_sources(context, files)],
        },
        "runDetails": {
            "builder": {"id": builder_id(environment), "version": {"trtspec": manifest.tools["trtspec"]}},
            "metadata": {
                **({"invocationId": found} if (found := invocation_id(environment)) else {}),
                "startedOn": format_time(started),
                "finishedOn": format_time(finished),
            },
        },
    }
    return render_statement([SubjectName(MANIFEST, digest)], PROVENANCE, predicate)


def builder_id(environment: Mapping[str, str]) -> str:
    """Return the builder: TRTSPEC_BUILDER_ID, or the workflow of GitHub, or the project of GitLab, or the local one."""
    if chosen := environment.get(BUILDER):
        return chosen
    if workflow := environment.get("GITHUB_WORKFLOW_REF"):
        return f"{environment.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}"
    return environment.get("CI_PROJECT_URL") or LOCAL_BUILDER


def invocation_id(environment: Mapping[str, str]) -> str:
    """Return the address of this run of GitHub's or GitLab's CI, or ""."""
    if run := environment.get("GITHUB_RUN_ID"):
        server, repository = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
        return f"{server}/{repository}/actions/runs/{run}/attempts/{environment.get('GITHUB_RUN_ATTEMPT', '1')}"
    return environment.get("CI_JOB_URL", "")


def model_uri(asked_model: str, revision: str) -> str:
    """Return the address of a model: on the hub at a commit, or the name of a local directory."""
    return f"{HUB}/{asked_model}/tree/{revision}" if revision else f"file:{Path(asked_model).name}"


def format_time(at: datetime) -> str:
    """Return a time in UTC in seconds, by RFC 3339."""
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def files_by_root(files: Sequence[Files]) -> dict[Path, dict[str, str]]:
    """Return the BLAKE3 digests of source files by directory and name."""
    found: dict[Path, dict[str, str]] = {}
    for each in files:
        found.setdefault(each.root, {}).update(each.digests)
    return found


def _origins(loaded: LoadedRecipe) -> set[str]:
    """Return the names of the texts that the recipe's values come from: files and overrides."""
    return {name for node in walk(loaded.tree) for name in (node.mark.file, node.key_mark.file)}


def _recipe_files(loaded: LoadedRecipe) -> Iterator[dict[str, Any]]:
    """Yield the recipe's file and the recipes that it extends."""
    names = sorted(each for each in _origins(loaded) if not each.startswith(SET))
    for path in dict.fromkeys([loaded.path, *map(Path, names)]):
        if path.is_file():
            digest = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            yield {"name": f"recipe:{path.name}", "uri": f"file:{path.name}", "digest": digest}


def _sources(context: PlanContext, files: Sequence[Files]) -> Iterator[dict[str, Any]]:
    """Yield each model with its commit, or with a digest of its files, then the files that steps have read."""
    known = files_by_root(files)
    roles: dict[Path, str] = {}
    for role, _, asked in recipe_models(context):
        source = context.sources.get(role)
        if source is None:
            continue
        roles[source.root] = role
        revision = hub_revision(asked, asked.model)
        digest = {"gitCommit": revision} if revision else {"sha256": listing_digest(known.get(source.root, {}))}
        yield {"name": f"source:{role}", "uri": model_uri(asked.model, revision), "digest": digest}
    for root, digests in sorted(known.items()):
        for name, blake3 in sorted(digests.items()):
            yield {"name": f"file:{roles.get(root, 'other')}/{name}", "digest": {"blake3": blake3}}


def listing_digest(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of the sorted lines "BLAKE3  NAME" of a directory's files, in hex."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _describe_step(result: StepResult) -> dict[str, Any]:
    command = result.step.command
    described = {"name": result.name, "key": result.key, "status": result.status}
    return {**described, "command": [_private(word) for word in command]} if command else described


def _private(word: str) -> str:
    """Return a word of a command without the user's home directory and without access tokens."""
    return mask_tokens(word.replace(str(Path.home()), "~"))
