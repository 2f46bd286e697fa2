# SPDX-License-Identifier: Apache-2.0
"""Start Edge-LLM's Python API on prebuilt engines; by default it would build its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError

CACHE_GB = 1e6  # large enough that nothing is evicted from this process's private cache


def load(root: Path, version: int, cache: Path) -> Any:
    """Start Edge-LLM on an artifact's engines. Raise TrtspecError if it would use other engines."""
    from experimental.server import LLM

    document = json.loads((root / str(version) / "model.json").read_text(encoding="utf-8"))
    engines, arguments = str((root / document["engines"]).resolve()), document["llm"]
    arguments["model"] = str((root / arguments["model"]).resolve())
    speculation = arguments.get("speculative_config", {})
    if "model" in speculation:
        speculation["model"] = str((root / speculation["model"]).resolve())
    options = link_engines(engines, arguments, cache)
    llm = LLM(**arguments, cache_dir=str(cache), engine_cache_max_size_gb=CACHE_GB, build_options=options)
    if os.path.realpath(llm.bundle_dir) != os.path.realpath(engines):
        raise TrtspecError("Edge-LLM does not use the artifact's engines", where=engines, hint="build the recipe again")
    return llm


def link_engines(engines: str, arguments: dict[str, Any], cache: Path) -> Any:
    """Link Edge-LLM's cache entry for these arguments to `engines`; return its build options."""
    from experimental.server.runtime.engine_build import BuildOptions, bundle_cache_path

    speculation = arguments.get("speculative_config", {})
    sizes = ("max_input_len", "max_batch_size", "max_kv_cache_capacity", "max_verify_tree_size", "max_draft_tree_size")
    options = BuildOptions(
        spec_type=speculation.get("method", "none"),
        draft_model_dir=speculation.get("model", ""),
        **{key: arguments[key] for key in sizes if key in arguments},
    )
    entry = Path(bundle_cache_path(arguments["model"], str(cache), options))
    entry.parent.mkdir(parents=True)
    entry.symlink_to(engines)
    return options
