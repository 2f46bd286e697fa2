# SPDX-License-Identifier: Apache-2.0
"""BuildOptions and the engine cache path; a test compares both with the real package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BuildOptions:
    spec_type: str = "none"
    draft_model_dir: str = ""
    max_input_len: int | None = None
    max_kv_cache_capacity: int | None = None
    max_batch_size: int | None = None
    max_verify_tree_size: int | None = None
    max_draft_tree_size: int | None = None
    max_image_tokens: int | None = None
    max_image_tokens_per_image: int | None = None
    tp_size: int | None = None
    plugin_path: str = ""
    tree_base: bool = False


def bundle_cache_path(model_dir: str, cache_dir: str, options: BuildOptions) -> str:
    sizes = (options.max_input_len, options.max_batch_size, options.max_kv_cache_capacity, options.spec_type)
    return str(Path(cache_dir) / "engines" / Path(model_dir).name / "-".join(map(str, sizes)))
