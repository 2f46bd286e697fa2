# SPDX-License-Identifier: Apache-2.0
"""SPEED-Bench: NVIDIA's prompts of eleven categories or of five lengths, as parquet or as JSON lines.

Some prompts are published without their text, which NVIDIA's script downloads from the source; they are an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import PromptFormat, has_turns, is_speed_bench, read_turns
from trtspec.engine.prompts.prompt import Prompt, PromptRecord

PLACEHOLDER = (
    "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"  # in NVIDIA/Model-Optimizer:examples/specdec_bench
)


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    return has_turns(records) and is_speed_bench(records)


def _read(record: PromptRecord) -> Prompt:
    prompt = read_turns(record)
    if PLACEHOLDER in prompt.text:
        hint = "write the complete file with NVIDIA's specdec_bench/prepare_data.py"
        raise record.refuse(f"prompt {prompt.name} has a placeholder instead of its text", hint)
    return prompt


FORMAT = PromptFormat("SPEED-Bench", _recognizes, _read)
