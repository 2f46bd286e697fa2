# SPDX-License-Identifier: Apache-2.0
"""The step that copies a checkpoint and adds the metadata that Edge-LLM requires."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.backends.steps.copy import CopyFiles
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.store.step import Inputs, StepProgress

CHAT_TEMPLATE = "chat_template.jinja"
# Export and build fail without a chat template. This one adds nothing to a text; requests contain complete texts.
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}\n"


@dataclass(frozen=True)
class StageCheckpoint(CopyFiles):
    """Copy a checkpoint's files; `what` is its role.

    `plain_template` adds a missing chat template. `target_layers` are the target layers whose inputs an EAGLE-3 drafter
    reads: NVIDIA/TensorRT-Edge-LLM:experimental/builder/models/eagle3/configuration.py@0.11.0 reads them only under
    this key and otherwise uses EAGLE's default layers.
    """

    VERSION: ClassVar[int] = 1

    plain_template: bool = False
    target_layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return `stage-target` or `stage-draft`."""
        return f"stage-{self.what}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, str]:
        """Copy the files, and add the template and the layers."""
        copied = super().run(out, inputs, progress)
        if self.plain_template:
            (out / CHAT_TEMPLATE).write_text(PLAIN_TEMPLATE)
        if self.target_layers:
            config = read_json(out / "config.json", MAX_CONFIG_BYTES)
            config["target_layer_ids"] = list(self.target_layers)
            (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return {name: digest for name, digest in copied.items() if name != "config.json"}


def has_chat_template(names: set[str], tokenizer_config: dict[str, object]) -> bool:
    """Return whether a checkpoint with these files has a chat template."""
    return CHAT_TEMPLATE in names or bool(tokenizer_config.get("chat_template"))
