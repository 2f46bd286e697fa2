# SPDX-License-Identifier: Apache-2.0
"""Loading of trtspec's own YAML files, which are trusted; user files are read with limits (recipe/yaml_parser.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast


def load_package_yaml(path: Path) -> Any:
    """Return the content of a YAML file of this package."""
    return yaml.load(path.read_text(encoding="utf-8"), LOADER)
