# SPDX-License-Identifier: Apache-2.0
"""MT-bench: 80 questions of eight categories, each with a second turn that depends on the first answer."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import PromptFormat, has_turns, is_spec_bench, is_speed_bench, read_turns
from trtspec.engine.prompts.prompt import PromptRecord


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    return has_turns(records) and not is_speed_bench(records) and not is_spec_bench(records)


FORMAT = PromptFormat("MT-bench", _recognizes, read_turns)
