# SPDX-License-Identifier: Apache-2.0
"""Result of a training: the document of `train --json`, and publication of the draft."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.bench.overlap import DIGESTS, RECORD
from trtspec.core.atomic_dir import exclusive_writer, remove_leftovers, replace_directory, temporary_sibling
from trtspec.core.errors import TrtspecError
from trtspec.core.files import copy_tree, fsync_path, sync_directories
from trtspec.training.verdict import TrainingVerdict, describe_acceptance

FORMAT_VERSION, KIND = 1, "train"


@dataclass(frozen=True)
class TrainResult:
    """The verdict on a trained draft at `trained`, which is published to `out`, and the training's record.

    A draft `from_scratch` is compared with the target alone, whose steps yield one token each. `left_out` counts
    prompts that were too long. `prompt_digests` covers the prompts used for training or validation. `target` is
    the model and its digest.
    """

    name: str
    method: str
    out: Path
    trained: Path
    verdict: TrainingVerdict
    record: Mapping[str, Any]
    left_out: int
    from_scratch: bool = False
    prompt_digests: Sequence[str] = ()
    target: Mapping[str, str] = field(default_factory=dict)

    @property
    def published(self) -> bool:
        """Return whether the draft is better overall and not worse on any kind."""
        return not self.verdict.refusals

    def as_dict(self) -> dict[str, Any]:
        """Return the document."""
        whole = self.verdict.whole
        return {
            "format_version": FORMAT_VERSION,
            "kind": KIND,
            "target": dict(self.target) or None,
            "name": self.name,
            "method": self.method,
            "from_scratch": self.from_scratch,
            "published": self.published,
            "prompts_left_out": self.left_out,
            "prompts_trained_on": len(self.prompt_digests),
            "draft": str(self.out) if self.published else None,
            "refusals": self.verdict.refusals,
            "before": describe_acceptance(whole.before),
            "after": describe_acceptance(whole.after),
            "change": whole.change.as_list(),
            "kinds": [each.as_dict() for each in self.verdict.kinds],
            "training": dict(self.record),
        }


def check_draft_path(out: Path) -> None:
    """Raise TrtspecError if `out` exists and is not a trained draft, or is not writable."""
    if out.exists() and not (out / RECORD).is_file():
        raise TrtspecError("not a trained draft; refusing to overwrite", where=str(out), hint="choose another --out")
    above = next(each for each in Path(os.path.abspath(out)).parents if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise TrtspecError(f"{above} is not a writable directory", where=str(out), hint="choose another --out")


def publish(found: TrainResult) -> None:
    """Publish the draft atomically, replacing an earlier one."""
    out = Path(os.path.abspath(found.out))
    with exclusive_writer(out):
        new = temporary_sibling(out, "tmp")
        try:
            copy_tree(found.trained, new)
            record = found.as_dict() | {DIGESTS: list(found.prompt_digests)}
            (new / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            for path in new.iterdir():
                path.chmod(0o644)
                fsync_path(path)
            sync_directories(new)
            replace_directory(new, out)
        finally:
            remove_leftovers(out)
