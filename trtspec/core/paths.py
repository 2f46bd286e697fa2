# SPDX-License-Identifier: Apache-2.0
"""Default paths, and a loader for the YAML files of the trtspec package.

The files of the package are trusted; recipe/yaml_tree.py reads user files under limits. No other module reads
directories from the environment. This module creates no directories.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


def cache_dir() -> Path:
    """Return the root directory of the store and of all other data that can be regenerated (`TRTSPEC_CACHE`)."""
    return _from_environment("TRTSPEC_CACHE", "XDG_CACHE_HOME", ".cache")


def store_dir() -> Path:
    return cache_dir() / "store"


def state_dir() -> Path:
    """Return the root directory of persistent state: deployments and their logs (`TRTSPEC_STATE`)."""
    return _from_environment("TRTSPEC_STATE", "XDG_STATE_HOME", ".local/state")


def hub_cache_dir() -> Path:
    """Return the directory of the Hugging Face hub cache, according to HF_HUB_CACHE or HF_HOME."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(home).expanduser() / "hub"


def model_repository_dir() -> Path:
    """Return the directory of the hand-written Triton models, next to the package (checkout) or inside it (wheel)."""
    return _shipped("model_repository")


def recipes_dir() -> Path:
    """Return the directory of the recipe catalog, next to the package (checkout) or inside it (wheel)."""
    return _shipped("recipes")


def plugins_dir() -> Path:
    """Return the directory of the kernel sources, next to the package (checkout) or inside it (wheel)."""
    return _shipped("plugins")


def wheel_kernels_dir() -> Path:
    """Return the directory of the kernels that were compiled for the wheel; it does not exist in a checkout."""
    return PACKAGE / "_data" / "kernels"


def default_prompts() -> Path:
    """Return the prompt file that gates and benchmarks use for an artifact without its own prompts."""
    return recipes_dir() / "prompts" / "default.jsonl"


def calibration_prompts() -> Path:
    """Return the prompt file for calibrating activation scales if the recipe does not specify one."""
    return recipes_dir() / "prompts" / "calibration.jsonl"


def is_below(path: Path, directory: Path) -> bool:
    """Return True if `path`, which need not exist, resolves to `directory` or a path below it."""
    return path.resolve().is_relative_to(directory.resolve())


def _shipped(name: str) -> Path:
    in_wheel = PACKAGE / "_data" / name
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


def _from_environment(own: str, base: str, fallback: str) -> Path:
    if named := os.environ.get(own):  # an empty value counts as unset; as a path it would be the current directory
        return Path(named).expanduser().absolute()
    return Path(os.environ.get(base) or Path.home() / fallback).expanduser().absolute() / "trtspec"


def load_package_yaml(path: Path) -> Any:
    """Return the parsed content of a YAML file that is part of the trtspec package."""
    import yaml  # lazy: most commands only need the paths

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast
    return yaml.load(path.read_text(encoding="utf-8"), loader)
