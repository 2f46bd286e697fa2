# SPDX-License-Identifier: Apache-2.0
"""MT-bench: 80 questions of eight categories, each with a second turn that depends on the first answer."""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat, question_set, read_turns

FORMAT = PromptFormat("MT-bench", lambda records: question_set(records) == "mt_bench", read_turns)
