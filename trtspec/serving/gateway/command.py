# SPDX-License-Identifier: Apache-2.0
"""The configuration, command line and readiness URL of an artifact's gateway.

The process that starts the gateway imports this module, which imports none of the gateway's own dependencies.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from trtspec.core.files import replace_file
from trtspec.core.hashing import file_sha256
from trtspec.core.ports import LOOPBACK
from trtspec.engine.simulated_acceptance import SIMULATED
from trtspec.serving.gateway.config import GatewayConfig, GatewayLimits
from trtspec.serving.triton.names import BLS, ENSEMBLE, PREPROCESSING, TARGET
from trtspec.serving.triton.nvidia_compat import NVIDIA, PARAMETER
from trtspec.serving.triton.repository_writer import CONFIG
from trtspec.store.artifact import Manifest, load_manifest
from trtspec.store.artifact_paths import MANIFEST, REPOSITORY, TOKENIZER, checkpoint, engine

ANYWHERE = "0.0.0.0"


def gateway_config(
    artifact: Path,
    *,
    grpc: str,
    port: int,
    host: str = LOOPBACK,
    model: str = "",
    keys_file: str = "",
    routes_file: str = "",
) -> GatewayConfig:
    """Return the configuration that serves an artifact as `model`, by default under the recipe's name.

    Requests go to the token-level target model if it drafts itself or does not draft. They go to `ensemble` if a
    decoding step involves several models, or if the target's input is text.
    """
    manifest = load_manifest(artifact)
    recipe = manifest.recipe
    serving = recipe.serving
    repository = artifact / REPOSITORY
    mark = SIMULATED if manifest.simulated_acceptance else "trtspec"
    by_steps = _parameter(repository / BLS, "draft_method", "none") != "none"
    text_level = by_steps or not (repository / TARGET).is_dir()
    return GatewayConfig(
        grpc=grpc,
        port=port,
        host=host,
        model=model or recipe.name,
        triton_model=ENSEMBLE if text_level else TARGET,
        text_level=text_level,
        tokenizer=str((artifact / TOKENIZER).absolute()),
        max_seq_len=recipe.engine.max_seq_len,
        max_input_len=recipe.engine.max_input_len,
        draft_len=recipe.speculation.draft_len or 0,
        vocab_size=int(_parameter(repository / BLS, "vocab_size", "0")),
        stop_ids=_stop_ids(repository, artifact / TOKENIZER),
        keys_file=keys_file,
        fingerprint=f"{mark}-{file_sha256(artifact / MANIFEST)[:16]}",
        same_text=same_text(manifest),
        routes_file=routes_file,
        processes=serving.openai_processes,
        tool_format="" if serving.tools.format == "auto" else serving.tools.format,
        limits=GatewayLimits(
            max_texts=recipe.engine.max_batch_size + serving.max_queue_size, **serving.limits.model_dump()
        ),
    )


def same_text(manifest: Manifest) -> str:
    """Return a key that is equal for artifacts whose targets have identical greedy output; "" if unknown.

    The key is a digest of the target's weights (without a draft head), its tokenizer and its engine.
    """
    weights, runs = f"{checkpoint('target')}/", (f"{engine('target')}/", f"{TOKENIZER}/")
    parts = runs if manifest.target_key else (weights, *runs)
    files = sorted((record.path, record.digest) for record in manifest.files if record.path.startswith(parts))
    if not manifest.target_key and not any(path.startswith((weights, runs[0])) for path, _ in files):
        return ""
    identity = (manifest.backend.name, manifest.recipe.target.dtype, manifest.target_key, files)
    return hashlib.sha256(repr(identity).encode()).hexdigest()


def write_config(config: GatewayConfig, path: Path) -> None:
    """Write a gateway configuration file with mode 0600."""
    replace_file(path, (json.dumps(asdict(config), indent=2) + "\n").encode(), mode=0o600)


def gateway_command(path: Path) -> list[str]:
    """Return the argv of the gateway for the configuration at `path`."""
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []  # do not import from the current directory
    return [sys.executable, *safe_path, "-m", "trtspec.serving.gateway", "--config", str(path)]


def base_url(config: GatewayConfig) -> str:
    """Return the `base_url` for OpenAI clients, without the /v1 suffix."""
    return f"http://{LOOPBACK if config.host == ANYWHERE else config.host}:{config.port}"


def ready_url(config: GatewayConfig) -> str:
    """Return the URL that responds with status 200 while the gateway and its model accept requests."""
    return f"{base_url(config)}/health"


def _stop_ids(repository: Path, tokenizer: Path) -> tuple[int, ...]:
    """Return the end token ids after the first; () unless the engine stops only at the end id of the request."""
    stops = _parameter(repository / PREPROCESSING, "stop_at_all_end_ids", "false") == "true"
    if not stops and _parameter(repository / PREPROCESSING, PARAMETER, "") != NVIDIA:
        return ()
    from trtspec.checkpoints.tokenizer import Tokenizer

    return Tokenizer(tokenizer).end_ids[1:]


def _parameter(model: Path, key: str, default: str) -> str:
    """Return a parameter in a model's config.pbtxt, or `default` if the file or the parameter is missing."""
    if not (model / CONFIG).is_file():
        return default
    from trtspec.serving.triton.config import load_config  # protobuf

    parameters = load_config(model / CONFIG).parameters
    return str(parameters[key].string_value) if key in parameters else default
