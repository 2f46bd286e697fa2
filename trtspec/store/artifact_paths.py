# SPDX-License-Identifier: Apache-2.0
"""Paths inside an artifact, relative to its root. No other module defines these names."""

from __future__ import annotations

MANIFEST = "manifest.json"
CHECKPOINTS, ENGINES, PLUGINS = "checkpoints", "engines", "plugins"
REPOSITORY, TOKENIZER, PROMPTS, REPORTS = "model_repository", "tokenizer", "prompts", "reports"


def checkpoint(role: str) -> str:
    """Return the directory of the checkpoint for role "target" or "draft"."""
    return f"{CHECKPOINTS}/{role}"


def engine(role: str) -> str:
    """Return the directory of the engine for role "target" or "draft"."""
    return f"{ENGINES}/{role}"


def from_model(path: str) -> str:
    """Return an artifact path relative to the directory of a model in the artifact's repository."""
    return f"../../{path}"
