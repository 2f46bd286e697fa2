# SPDX-License-Identifier: Apache-2.0
"""SPEED-Bench: NVIDIA's prompts of eleven categories or of five lengths, as parquet or as JSON lines.

Some prompts are published without their text, which NVIDIA's script downloads from the source. Such prompts are
rejected with an error.
"""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat, question_set, read_turns
from trtspec.engine.prompts.prompt import Prompt, PromptRecord

# in NVIDIA/Model-Optimizer:examples/specdec_bench
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


def _read(record: PromptRecord) -> Prompt:
    prompt = read_turns(record)
    if PLACEHOLDER in prompt.text:
        hint = "write the complete file with NVIDIA's specdec_bench/prepare_data.py"
        raise record.refuse(f"prompt {prompt.name} has a placeholder instead of its text", hint)
    return prompt


FORMAT = PromptFormat("SPEED-Bench", lambda records: question_set(records) == "speed_bench", _read)
