# SPDX-License-Identifier: Apache-2.0
"""Golden files: one reviewed repository of engines for each method, in golden/METHOD/MODEL.

`python -m tests.backends.tensorrt_llm.golden` regenerates them. Review the changes before you commit them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtspec.backends.tensorrt_llm.artifact import (
    EmitEngineRepository,
    EngineRepositorySettings,
)
from trtspec.backends.tensorrt_llm.placement import PlacedModel
from trtspec.methods.tree_choices import EAGLE_CHOICES, MEDUSA_CHOICES
from trtspec.serving.triton.names import DRAFT, TARGET

ROOT = Path(__file__).with_name("golden")
NAME = "mc_sim_7b_63"


def settings(method: str, **values: Any) -> EngineRepositorySettings:
    """Return the settings of a method; `values` override a plain repository's."""
    plain = {"draft_len": 0, "options": "{}", "max_batch_size": 8, "max_seq_len": 2048, "vocab_size": 32000}
    return EngineRepositorySettings(method=method, **{**plain, "target": PlacedModel(TARGET, (0,), (), 0.9), **values})


REPOSITORIES = {
    "none": settings("none", target=PlacedModel(TARGET, (0, 1), (), 0.85, chunked_context=True)),
    "draft_target": settings(
        "draft_target",
        draft_len=5,
        options='{"stop_below": 0.0, "use_draft_logits": true}',
        target=PlacedModel(TARGET, (0, 1), (2, 3), 0.5, 40960),
        draft=PlacedModel(DRAFT, (0,), (1,), 0.4, 40960),
        fast_logits=True,
        warmup=True,
    ),
    "ngram": settings("ngram", draft_len=8, options='{"max_match": 4, "min_match": 1}'),
    "medusa": settings("medusa", options=f'{{"choices": "{NAME}"}}', choices=MEDUSA_CHOICES[NAME], greedy_only=True),
    "eagle": settings(
        "eagle",
        options=f'{{"choices": "{NAME}"}}',
        choices=EAGLE_CHOICES[NAME],
        streaming=False,
        greedy_only=True,
    ),
    "lookahead": settings(
        "lookahead",
        options='{"ngram": 6, "verification": 5, "window": 7}',
        lookahead=(7, 6, 5),
        greedy_only=True,
    ),
    "redrafter": settings("redrafter", draft_len=5, options='{"beams": 5, "greedy": false}', max_queue_delay_us=0),
}


def write(root: Path) -> None:
    """Write config.pbtxt of every model of every repository below `root`."""
    for method, wanted in REPOSITORIES.items():
        with TemporaryDirectory() as place:
            EmitEngineRepository((), wanted).emit(Path(place))
            for config in sorted(Path(place).glob("*/config.pbtxt")):
                target = root / method / config.parent.name / config.name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(config, target)


if __name__ == "__main__":
    shutil.rmtree(ROOT, ignore_errors=True)
    write(ROOT)
