# SPDX-License-Identifier: Apache-2.0
"""Where things lie inside an artifact, relative to its root; nobody else spells these names."""

from __future__ import annotations

MANIFEST = "manifest.json"
CHECKPOINTS, ENGINES, PLUGINS = "checkpoints", "engines", "plugins"
REPOSITORY, TOKENIZER, PROMPTS, REPORTS = "model_repository", "tokenizer", "prompts", "reports"


def checkpoint(role: str) -> str:
    """Return the directory of the checkpoint of "target" or "draft"."""
    return f"{CHECKPOINTS}/{role}"


def engine(role: str) -> str:
    """Return the directory of the engine of "target" or "draft"."""
    return f"{ENGINES}/{role}"


def from_model(path: str) -> str:
    """Return a path of the artifact as a model of its repository finds it, from its own directory."""
    return f"../../{path}"
