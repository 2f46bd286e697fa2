# SPDX-License-Identifier: Apache-2.0
"""The documents of an artifact in a registry: an OCI image manifest with the media types of CNCF's ModelPack.

Each file of an artifact, manifest.json included, is one layer: its bytes as they are, so that equal files are one blob
of a registry. Its path is an annotation of the layer. The documents contain no times: equal artifacts have equal
documents and digests.

Sources: opencontainers/image-spec:manifest.md@v1.1.1; modelpack/model-spec:docs/config.md@v0.0.7,
modelpack/model-spec:specs-go/v1/mediatype.go@v0.0.7 and modelpack/model-spec:specs-go/v1/annotations.go@v0.0.7.
Documents are read as untrusted input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trtspec.core.diagnostics import first_invalid, quote_value
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.store.artifact_paths import MANIFEST, PROMPTS
from trtspec.store.file_records import RelativePath

MAX_MANIFEST_BYTES = 4 << 20  # the largest manifest that registries have to accept
MAX_LAYERS = 10_000
IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
WEIGHT, WEIGHT_CONFIG, CODE, DOC, DATASET = (
    f"application/vnd.cncf.model.{kind}.v1.raw" for kind in ("weight", "weight.config", "code", "doc", "dataset")
)
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"  # the name under which ORAS and container runtimes write a layer
VERSION = "org.opencontainers.image.version"

_WEIGHT_SUFFIXES = {".safetensors", ".engine", ".plan", ".bin", ".onnx"}
_CODE_SUFFIXES = {".py", ".so", ".sh"}
_DOC_SUFFIXES = {".md", ".txt"}


class Descriptor(BaseModel):
    """A blob: its digest "sha256:HEX", its size in bytes, its media type, and annotations."""

    model_config = ConfigDict(frozen=True, strict=True)

    mediaType: Annotated[str, Field(max_length=255)]  # noqa: N815 - the names of the specification
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    annotations: dict[str, str] = {}

    @property
    def hex(self) -> str:
        return self.digest.removeprefix("sha256:")


class ImageManifest(BaseModel):
    """An OCI image manifest; unknown keys are ignored, as the specification requires."""

    model_config = ConfigDict(frozen=True)

    schemaVersion: Literal[2]  # noqa: N815
    mediaType: Literal["application/vnd.oci.image.manifest.v1+json"]  # noqa: N815
    artifactType: str = ""  # noqa: N815
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Field(max_length=MAX_LAYERS)]
    annotations: dict[str, str] = {}

    @property
    def total_bytes(self) -> int:
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True)
class Package:
    """The files of an artifact in a registry by path, without manifest.json, and the descriptor of manifest.json."""

    files: Mapping[str, Descriptor]
    manifest: Descriptor
    total_bytes: int


def layer_type(path: str) -> str:
    """Return the media type of an artifact's file."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _WEIGHT_SUFFIXES:
        return WEIGHT
    if suffix in _CODE_SUFFIXES:
        return CODE
    if path.startswith(f"{PROMPTS}/"):
        return DATASET
    return DOC if suffix in _DOC_SUFFIXES else WEIGHT_CONFIG


def render_layer(path: str, sha256: str, nbytes: int) -> dict[str, Any]:
    """Return the descriptor of an artifact's file."""
    names = {FILE_PATH: path, TITLE: path}
    return {"mediaType": layer_type(path), "digest": f"sha256:{sha256}", "size": nbytes, "annotations": names}


def render_config(recipe: ResolvedRecipe, digests: list[str]) -> bytes:
    """Return the model configuration; `digests` are the digests of the uncompressed layers."""
    document = {
        "descriptor": {"name": recipe.name},
        "config": {"architecture": "transformer", "format": recipe.engine.backend, "precision": recipe.target.dtype},
        "modelfs": {"type": "layers", "diffIds": digests},
    }
    return dump(document)


def render_manifest(
    config: bytes,
    layers: list[dict[str, Any]],
    annotations: Mapping[str, str],
    artifact_type: str = ARTIFACT_TYPE,
    config_type: str = CONFIG_TYPE,
) -> bytes:
    """Return an image manifest, by default that of an artifact."""
    digest = hashlib.sha256(config).hexdigest()
    document = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": artifact_type,
        "config": {"mediaType": config_type, "digest": f"sha256:{digest}", "size": len(config)},
        "layers": layers,
        "annotations": dict(annotations),
    }
    return dump(document)


def dump(document: object) -> bytes:
    """Return JSON with sorted keys and without spaces, so that equal documents have equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parse_image_manifest(where: str, data: bytes, expected: str = "") -> ImageManifest:
    """Parse an image manifest; raises DigestMismatch if its digest differs from `expected`, unless that is empty.

    Raises TrtspecError for any other document.
    """
    check_digest(where, "the image manifest", data, expected)
    try:
        document = json.loads(data)
        if isinstance(document, dict) and document.get("mediaType") == "application/vnd.oci.image.index.v1+json":
            raise TrtspecError("an index of several images, not an artifact", where=where)
        return ImageManifest.model_validate(document)
    except ValidationError as error:
        raise TrtspecError(f"not an OCI image manifest: {first_invalid(error)}", where=where) from None
    except (ValueError, RecursionError):
        raise TrtspecError("not valid JSON", where=where) from None


def read_package(where: str, manifest: ImageManifest) -> Package:
    """Return the files of an artifact; raises TrtspecError if the manifest does not describe one of trtspec."""
    if manifest.artifactType != ARTIFACT_TYPE:
        kind = manifest.artifactType or manifest.config.mediaType
        raise TrtspecError(f"not a ModelPack: its artifact type is {quote_value(kind)}", where=where)
    files: dict[str, Descriptor] = {}
    for layer in manifest.layers:
        path = _layer_path(where, layer)
        if path in files:
            raise TrtspecError(f"{quote_value(path)} is listed twice", where=where)
        files[path] = layer
    if MANIFEST not in files:
        raise TrtspecError(f"a ModelPack, but not of trtspec: it has no {MANIFEST}", where=where)
    found = files.pop(MANIFEST)
    return Package(files, found, manifest.total_bytes)


_PATH = TypeAdapter[str](RelativePath)


def _layer_path(where: str, layer: Descriptor) -> str:
    path = layer.annotations.get(FILE_PATH, "")
    if layer.mediaType not in (WEIGHT, WEIGHT_CONFIG, CODE, DOC, DATASET):
        raise TrtspecError(f"a layer of the type {quote_value(layer.mediaType)}, which is not a raw file", where=where)
    try:
        return _PATH.validate_python(path, strict=True)
    except ValidationError as error:
        raise TrtspecError(str(first_invalid(error)), where=where) from None


def check_digest(where: str, what: str, data: bytes, expected: str) -> None:
    """Raise DigestMismatch if the SHA-256 of `data` is not `expected` ("sha256:HEX"), unless that is empty."""
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if expected and found != expected:
        raise DigestMismatch(f"{what} has the digest {found}, expected {expected}", where=where)
