# SPDX-License-Identifier: Apache-2.0
"""Policy for code in artifacts: only files that this trtspec emits or built, and files whose digests the user allows.

A manifest proves the integrity of files, not their origin. Files that tritonserver or the torch engine would execute
must therefore be identical to files of this installation:

    model_repository/MODEL/config.pbtxt        only backends and parameters of trtspec's own models
    model_repository/MODEL/1/*.json, *.yaml    engine arguments, except those that load more code
    model_repository/MODEL/warmup/*.int32      numbers that tritonserver sends to the model as a request
    model_repository/**, all else              identical to a file of trtspec's models
    plugins/*                                  a library that trtspec compiled on this machine
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtspec.backends.base import SHARED_MODELS, find_backend
from trtspec.core.errors import TrtspecError, UntrustedCode
from trtspec.core.files import read_bounded
from trtspec.core.hashing import file_sha256
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.nvidia_compat import MODEL, NVIDIA, PARAMETER
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import BYTE_CODE, PLUGINS, REPOSITORY

ALLOW = "TRTSPEC_ALLOW_CODE"  # SHA-256 digests, separated by commas
CONFIG = re.compile(r"[^/]+/config\.pbtxt")
DOCUMENT = re.compile(r"[^/]+/1/[^/]+\.(json|yaml)")
NUMBERS = re.compile(r"[^/]+/warmup/[^/]+\.int32")
MAX_DOCUMENT_BYTES = 1 << 20
# Engine arguments that load code of a checkpoint, or a class by its name.
RUNS_CODE = re.compile(r"trust_remote_code|code_revision|.*(_cls|_class|_module|_plugins?|_processors?|_loader|_hook)")
HINT = (
    "build it with this trtspec on this machine (converted checkpoints stay in the store), or review the file and "
    "allow it: --allow-code SHA256"
)


def check_code(root: Path, manifest: Manifest) -> None:
    """Raise UntrustedCode if an artifact, or a copy of its executable parts, contains code that is not allowed."""
    if found := disallowed_code(root, manifest):
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise UntrustedCode("; ".join(found[:3]) + more, where=str(root), hint=HINT)


def disallowed_code(root: Path, manifest: Manifest) -> list[str]:
    """Return one line for each file that must not be executed, with the reason and its SHA-256 digest."""
    allowed = allowed_digests()
    found = [*_models(root / REPOSITORY, manifest.backend.name), *_libraries(root / PLUGINS)]
    denied = [(path, why, digest) for path, why in found if (digest := file_sha256(path)) not in allowed]
    return [f"{path.relative_to(root)}: {why} (sha256 {digest})" for path, why, digest in denied]


def allowed_digests() -> frozenset[str]:
    """Return the SHA-256 digests in TRTSPEC_ALLOW_CODE; raise TrtspecError for an invalid digest."""
    digests = [word for word in re.split(r"[\s,]+", os.environ.get(ALLOW, "").lower()) if word]
    if odd := next((word for word in digests if not re.fullmatch("[0-9a-f]{64}", word)), None):
        raise TrtspecError(f"{odd!r} is not a SHA-256 digest", where=ALLOW, hint="64 hex digits, as sha256sum prints")
    return frozenset(digests)


def _models(repository: Path, backend: str) -> Iterator[tuple[Path, str]]:
    from trtspec.serving.triton.config import load_config  # imports protobuf, which planning does not need

    own = find_backend(backend).serving().models
    sources = [root for root in (model_repository_dir(), SHARED_MODELS, own) if root]
    known = {file_sha256(path) for root in sources for path in _files(root) if path.parent.name == "1"}
    ours = [load_config(path) for root in sources for path in sorted(root.glob("*/config.pbtxt"))]
    for path in _files(repository):
        name = path.relative_to(repository).as_posix()
        if CONFIG.fullmatch(name):
            why = _why_not_config(path, ours)
        elif DOCUMENT.fullmatch(name):
            why = _why_not_document(path)
        elif NUMBERS.fullmatch(name):
            why = ""
        else:
            why = "" if file_sha256(path) in known else "not code that this trtspec emits"
        if why:
            yield path, why


def _libraries(plugins: Path) -> Iterator[tuple[Path, str]]:
    from trtspec.kernels.build import list_libraries  # imported late, because `check` loads this module

    files = _files(plugins)
    known = {file_sha256(each.path) for each in list_libraries() if each.path.is_file()} if files else set()
    yield from ((path, "not a library that trtspec compiled here") for path in files if file_sha256(path) not in known)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and BYTE_CODE not in path.parts)


def _why_not_config(path: Path, ours: list[Any]) -> str:
    """Return the reason why a model configuration is not allowed; "" if it is.

    An allowed configuration matches an element of `ours`, the configurations of trtspec's models.
    """
    from trtspec.serving.triton.config import load_config

    try:
        config = load_config(path)
    except TrtspecError as error:
        return f"not a configuration of trtspec: {error.message}"
    if not any(_runs(config) == _runs(each) for each in ours):
        return f"trtspec does not emit models for backend {config.backend or config.platform!r}"
    files = [each.input_data_file for sample in config.model_warmup for each in sample.inputs.values()]
    if any("/" in file for file in files):
        return "its warm-up reads a file outside the model's directory"
    for key, parameter in config.parameters.items():
        if key == PARAMETER and parameter.string_value in (NVIDIA, MODEL):  # added when the repository is emitted
            continue
        values = {each.parameters[key].string_value for each in ours if key in each.parameters}
        if not values:
            return f"trtspec does not emit the parameter {key}"
        if _leads_out(parameter.string_value, path.parent.name, values):
            return f"{key} points outside the artifact"
    return ""


def _runs(config: Any) -> tuple[str, str, str]:
    return config.backend, config.platform, config.default_model_filename


def _leads_out(value: str, model: str, ours: set[str]) -> bool:
    """Return whether a parameter value is a path outside the artifact, other than the values in `ours`."""
    if any(each.startswith("/") for each in ours):
        return value not in ours
    normal = posixpath.normpath(posixpath.join(REPOSITORY, model, value))
    return value.startswith("/") or normal.split("/")[0] == ".."


def _why_not_document(path: Path) -> str:
    """Return the reason why a document of engine arguments is not allowed; "" if none of them can load other code."""
    import yaml  # also parses the values of JSON

    try:
        content = read_bounded(path, MAX_DOCUMENT_BYTES)
        document = json.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return "cannot be read"
    odd = next((key for key, value in _entries(document) if value and RUNS_CODE.fullmatch(key)), "")
    return f"{odd} can load other code" if odd else ""


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield str(key), value
            yield from _entries(value)
    elif isinstance(document, list):
        for each in document:
            yield from _entries(each)
