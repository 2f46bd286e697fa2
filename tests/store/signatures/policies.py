# SPDX-License-Identifier: Apache-2.0
"""Policies for tests."""

from __future__ import annotations

from pathlib import Path


def write_policy(root: Path, keys: Path, more: str = "", key: str = "release") -> Path:
    """Write a policy that accepts a key, with further lines; return its path."""
    path = root / "policy.yaml"
    path.write_text(f"schema: trtspec.signature-policy/1\nsigners: [{{key: {keys / key}.pub}}]\n{more}\n")
    return path
