# SPDX-License-Identifier: Apache-2.0
"""Default paths, and trtspec's own YAML files, which are trusted; recipe/yaml_tree.py reads user files with limits.

The only module that reads directories from the environment; it creates none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


def cache_dir() -> Path:
    """Return the root of the store and of everything that can be regenerated (`TRTSPEC_CACHE`)."""
    return _from_environment("TRTSPEC_CACHE", "XDG_CACHE_HOME", ".cache")


def store_dir() -> Path:
    return cache_dir() / "store"


def state_dir() -> Path:
    """Return the root of persistent state: deployments and their logs (`TRTSPEC_STATE`)."""
    return _from_environment("TRTSPEC_STATE", "XDG_STATE_HOME", ".local/state")


def hub_cache_dir() -> Path:
    """Return the Hugging Face hub cache, as set by the hub's environment variables."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(home).expanduser() / "hub"


def model_repository_dir() -> Path:
    """Return the hand-written Triton models: next to the package in a checkout, inside it in a wheel."""
    return _shipped("model_repository")


def recipes_dir() -> Path:
    """Return the recipe catalogue: next to the package in a checkout, inside it in a wheel."""
    return _shipped("recipes")


def plugins_dir() -> Path:
    """Return the sources of the kernels: next to the package in a checkout, inside it in a wheel."""
    return _shipped("plugins")


def wheel_kernels_dir() -> Path:
    """Return the directory of the kernels that were compiled for the wheel; it does not exist in a checkout."""
    return PACKAGE / "_data" / "kernels"


def default_prompts() -> Path:
    """Return the prompts that gates and benchmarks use for artifacts without prompts."""
    return recipes_dir() / "prompts" / "default.jsonl"


def calibration_prompts() -> Path:
    """Return the prompts for calibrating activation scales if a recipe specifies none."""
    return recipes_dir() / "prompts" / "calibration.jsonl"


def is_below(path: Path, directory: Path) -> bool:
    """Return whether a path, which need not exist, resolves into a directory."""
    return path.resolve().is_relative_to(directory.resolve())


def _shipped(name: str) -> Path:
    in_wheel = PACKAGE / "_data" / name
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


def _from_environment(own: str, base: str, fallback: str) -> Path:
    if named := os.environ.get(own):  # an empty value counts as unset: "" would be the current directory
        return Path(named).expanduser().absolute()
    return Path(os.environ.get(base) or Path.home() / fallback).expanduser().absolute() / "trtspec"


def load_package_yaml(path: Path) -> Any:
    """Return the content of a YAML file of this package."""
    import yaml  # lazy: most commands only need the paths

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
    return yaml.load(path.read_text(encoding="utf-8"), loader)
