# SPDX-License-Identifier: Apache-2.0
"""An engine of every method of the torch engine, on one small random target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests._support.tiny import convert, make_llama
from tests.methods import eagle3_heads, eagle_heads, heads, parallel_nets, recurrent
from trtspec.engine.engine import Engine
from trtspec.engine.settings import EngineSettings

PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
# name: part converted with the target, method, draft_len, options
METHODS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "none": ("plain", "none", 0, {}),
    "draft_target": ("plain", "draft_target", 4, {}),
    "draft_target, unsure": ("plain", "draft_target", 4, {"stop_below": 0.2}),
    "ngram": ("plain", "ngram", 6, {}),
    "suffix": ("plain", "suffix", 6, {"max_cached_requests": 0}),  # else drafts depend on the requests before
    "lookahead": ("plain", "lookahead", 0, {"window": 4, "ngram": 3, "verification": 4}),
    "swift": ("plain", "swift", 3, {"skip": {"attention": [1], "mlp": [1]}}),
    "medusa": ("medusa", "medusa", 0, {"choices": PATHS}),
    "medusa, typical": ("medusa", "medusa", 0, {"choices": PATHS, "lossy": True}),
    "eagle": ("eagle", "eagle", 0, {"choices": PATHS}),
    "eagle, dynamic": ("eagle", "eagle", 0, {"dynamic": True, "top_k": 3, "depth": 3, "nodes": 6}),
    "eagle3": ("eagle3", "eagle3", 4, {}),
    "eagle3, tree": ("eagle3", "eagle3", 3, {"top_k": 3, "nodes": 6}),
    "redrafter": ("redrafter", "redrafter", 4, {"beams": 3}),
    "pard": ("plain", "pard", 4, {}),
    "p_eagle": ("p_eagle", "p_eagle", 4, {}),
    "dflash": ("dflash", "dflash", 4, {}),
    "dspark": ("dspark", "dspark", 4, {}),
}


class Models:
    """A random Llama, converted on demand alone and with each kind of head or net, and a draft model."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.source = make_llama(root / "hf", scale=0.15, num_hidden_layers=3)
        draft = make_llama(root / "hf-draft", seed=1, num_hidden_layers=1)
        config = json.loads((draft / "config.json").read_text())
        (draft / "config.json").write_text(json.dumps({**config, "pard_token": 2}))
        self.draft = convert(draft, root / "draft")
        self._made: dict[str, Path] = {}

    def target(self, part: str) -> Path:
        """Return the target converted with a part."""
        if part not in self._made:
            self._made[part] = self._convert[part](self._root / part)
        return self._made[part]

    @property
    def _convert(self) -> dict[str, Callable[[Path], Path]]:
        source, root = self.source, self._root
        return {
            "plain": lambda out: convert(source, out),
            "medusa": lambda out: heads.convert_with(
                source, heads.save_heads(root / "heads", heads.random_heads(4)), out, PATHS
            ),
            "eagle": lambda out: eagle_heads.convert_with(
                source, eagle_heads.save_head(root / "eagle-net", eagle_heads.random_head(copies=1.0)), out, {}
            ),
            "eagle3": lambda out: eagle3_heads.convert_with(
                source, eagle3_heads.save_head(eagle3_heads.random_head(), root / "eagle3-net"), out
            ),
            "redrafter": lambda out: recurrent.convert_with(
                source, recurrent.random_drafter().save(root / "recurrent-net"), out
            ),
            "p_eagle": lambda out: parallel_nets.random_p_eagle().convert(source, out),
            **{
                kind: lambda out, kind=kind: parallel_nets.random_block_net(kind).convert(source, out)
                for kind in ("dflash", "dspark")
            },
        }

    def engine(self, name: str, device: str, dtype: str = "float32", kernels: tuple[Path, ...] = ()) -> Engine:
        """Load the engine of a method."""
        part, method, draft_len, options = METHODS[name]
        sizes = {"max_batch_size": 8, "max_seq_len": 128}
        settings = EngineSettings(method, draft_len, options, **sizes, device=device, dtype=dtype, kernels=kernels)
        return Engine(self.target(part), self.draft if method in ("draft_target", "pard") else None, settings)
