# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters in the format of PEFT, with a single tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}


def write_adapter(root: Path, **changes: Any) -> Path:
    """Write an adapter to the directory `root` and return it; `changes` are keys of adapter_config.json."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    (root / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return root
