# SPDX-License-Identifier: Apache-2.0
"""The gateway's configuration for an artifact."""

from __future__ import annotations

from pathlib import Path

from tests._support.manifests import read_manifest, resolved, write_manifest
from trtspec.recipe.schema import EntryLimits
from trtspec.serving.gateway.command import gateway_config
from trtspec.serving.gateway.config import GatewayLimits
from trtspec.store.artifact import BackendRecord, Manifest

LIMITS = {
    "max_body_bytes": 65536,
    "max_choices": 3,
    "requests_per_minute": 90,
    "timeout_s": 61.0,
    "stall_s": 7.0,
    "write_timeout_s": 2.0,
    "body_timeout_s": 4.0,
}


def write(root: Path, **serving: object) -> Path:
    """Write the manifest of an artifact without files."""
    recipe = resolved(serving=serving, engine={"max_batch_size": 2})
    backend = BackendRecord(name="embedded", why="a test")
    manifest = Manifest(recipe=recipe, steps=(), files=(), tools={}, gpu={}, backend=backend)
    (root / "manifest.json").write_bytes(manifest.render())
    return root


def limits_of(artifact: Path) -> GatewayLimits:
    return gateway_config(artifact, grpc="127.0.0.1:1", port=1).limits


def test_gateway_uses_the_limits_of_the_recipe(tmp_path: Path) -> None:
    assert limits_of(write(tmp_path, max_queue_size=5, limits=LIMITS)) == GatewayLimits(max_texts=7, **LIMITS)  # type: ignore[arg-type]


def test_recipe_limit_defaults_equal_the_gateway_defaults() -> None:
    assert EntryLimits().model_dump() == {key: getattr(GatewayLimits(), key) for key in EntryLimits.model_fields}


def test_artifact_without_recorded_limits_uses_the_gateway_defaults(tmp_path: Path) -> None:
    write(tmp_path, max_queue_size=5)
    document = read_manifest(tmp_path)
    del document["recipe"]["serving"]["limits"]
    write_manifest(tmp_path, document)
    assert limits_of(tmp_path) == GatewayLimits(max_texts=7)
