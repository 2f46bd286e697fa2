# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of an artifact: CycloneDX 1.6 with a model card, its models, files and tools.

Source of the format: CycloneDX/specification:schema/bom-1.6.schema.json@1.6.1. It contains no time, so equal artifacts
have equal documents.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtspec.backends.context import PlanContext, hub_revision, recipe_models
from trtspec.core.files import read_bounded
from trtspec.planning.provenance import files_by_root, model_uri
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import PROMPTS, TOKENIZER
from trtspec.store.files import Files
from trtspec.store.signatures.envelope import dump

FORMAT_VERSION = "1.6"
MAX_CARD_BYTES = 1 << 20
# Identifiers of model cards on the hub that are licences of SPDX; others are named as they are.
SPDX = {
    "apache-2.0": "Apache-2.0",
    "mit": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0",
    "gpl-3.0": "GPL-3.0-only",
}
_LICENSE = re.compile(r"^(license|license_name):[ \t]*['\"]?([\w.+ -]{1,100}?)['\"]?[ \t]*\r?$", re.MULTILINE)
_MODEL = "machine-learning-model"


def render_bom(context: PlanContext, files: Sequence[Files], manifest: Manifest, digest: str) -> bytes:
    """Return the bill of materials of an artifact whose manifest has the SHA-256 `digest`."""
    models = list(_models(context, files))
    components = [*models, *_tokenizer(manifest), *(_file(record.path, record.digest) for record in manifest.files)]
    main = {
        "type": _MODEL,
        "bom-ref": "artifact",
        "name": manifest.recipe.name,
        "version": f"sha256:{digest}",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "modelCard": _model_card(context, manifest),
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": FORMAT_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'urn:trtspec:manifest:{digest}')}",
        "version": 1,
        "metadata": {"component": main, "tools": {"components": list(_tools(manifest))}},
        "components": components,
        "dependencies": [{"ref": "artifact", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return dump(document)


def _models(context: PlanContext, files: Sequence[Files]) -> Iterator[dict[str, Any]]:
    known = files_by_root(files)
    for role, _, asked in recipe_models(context):
        source = context.sources.get(role)
        if source is None:
            continue
        revision = hub_revision(asked, asked.model)
        name = asked.model if revision else Path(asked.model).name
        purl = f"pkg:huggingface/{quote(name, safe='/')}@{revision}"
        architectures = source.config.get("architectures")
        architecture = architectures[0] if isinstance(architectures, list) and architectures else ""
        parameters = {"modelArchitecture": str(architecture)} if architecture else {}
        yield {
            "type": _MODEL,
            "bom-ref": f"model:{role}",
            "name": name,
            **({"version": revision, "purl": purl} if revision else {}),
            **_licenses(source.root),
            "externalReferences": [{"type": "distribution", "url": model_uri(asked.model, revision)}],
            "modelCard": {"modelParameters": {"task": "text-generation", **parameters}},
            "components": [
                _file(f"source/{role}/{each}", blake3) for each, blake3 in sorted(known.get(source.root, {}).items())
            ],
        }


def _model_card(context: PlanContext, manifest: Manifest) -> dict[str, Any]:
    recipe = manifest.recipe
    properties = {
        "trtspec:speculation.method": recipe.speculation.method,
        "trtspec:speculation.draft_len": str(recipe.speculation.draft_len or 0),
        "trtspec:engine.backend": recipe.engine.backend,
        "trtspec:engine.version": recipe.engine.version or "",
        "trtspec:target.dtype": recipe.target.dtype,
        "trtspec:target.quantization.weights": recipe.target.quantization.weights,
    }
    datasets = [
        {"type": "dataset", "name": path, "contents": {"attachment": {"content": path}}}
        for path in sorted(record.path for record in manifest.files if record.path.startswith(f"{PROMPTS}/"))
    ]
    family = context.target_config.architecture if context.target_config else ""
    return {
        "modelParameters": {
            "task": "text-generation",
            **({"architectureFamily": family} if family else {}),
            **({"datasets": datasets} if datasets else {}),
            "inputs": [{"format": "text"}],
            "outputs": [{"format": "text"}],
        },
        "properties": [{"name": name, "value": value} for name, value in sorted(properties.items())],
    }


def _tokenizer(manifest: Manifest) -> Iterator[dict[str, Any]]:
    if any(record.path.startswith(f"{TOKENIZER}/") for record in manifest.files):
        yield {"type": "data", "bom-ref": "tokenizer", "name": TOKENIZER, "data": [{"type": "configuration"}]}


def _tools(manifest: Manifest) -> Iterator[dict[str, Any]]:
    for name, version in sorted(manifest.tools.items()):
        kind = "application" if name == "trtspec" else "library"
        yield {"type": kind, "bom-ref": f"tool:{name}", "name": name, "version": version}


def _file(path: str, blake3: str) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{path}",
        "name": path,
        "hashes": [{"alg": "BLAKE3", "content": blake3}],
    }


def _licenses(root: Path) -> dict[str, Any]:
    """Return the licence that a model card states, or nothing."""
    name = stated_license(root)
    if not name:
        return {}
    known = SPDX.get(name.lower())
    return {"licenses": [{"license": {"id": known} if known else {"name": name}}]}


def stated_license(root: Path) -> str:
    """Return the licence in the head of README.md of a model's directory, or ""."""
    try:
        text = read_bounded(root / "README.md", MAX_CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    head = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    fields: dict[str, str] = dict(_LICENSE.findall(head[1])) if head else {}
    return fields.get("license_name") or fields.get("license", "")
