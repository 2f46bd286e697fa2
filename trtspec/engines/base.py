# SPDX-License-Identifier: Apache-2.0
"""What runs a converted checkpoint, and which one a recipe gets."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from trtspec.registry import discover


@dataclass(frozen=True)
class Backend:
    """One engine; a module or package of this folder joins by defining it as `BACKEND`.

    `package` is the Python package it needs to build or run, None for one that comes with trtspec.
    """

    summary: str
    package: str | None


def backends() -> dict[str, Backend]:
    """Return the backends this version has, by name."""
    return discover("trtspec.engines", "BACKEND")


def choose_backend(wanted: str) -> tuple[str, str]:
    """Return (backend, why) for a recipe's `engine.backend`, one of `backends()` or "auto".

    The choice is made while planning and recorded; nothing falls back at run time.
    """
    if wanted != "auto":
        return wanted, "the recipe asks for it"
    for name, backend in backends().items():
        if backend.package and find_spec(backend.package):
            return name, f"{backend.package} is installed"
    return "embedded", "TensorRT-LLM is not installed here" if not find_spec("tensorrt_llm") else (
        "TensorRT-LLM is installed, but this version of trtspec builds no engines with it"
    )
