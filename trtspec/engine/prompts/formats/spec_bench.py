# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench: the 80 questions of MT-bench, and 80 each of translation, summarization, qa, math_reasoning and rag."""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat, question_set, read_turns

FORMAT = PromptFormat("Spec-Bench", lambda records: question_set(records) == "spec_bench", read_turns)
