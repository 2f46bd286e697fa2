# SPDX-License-Identifier: Apache-2.0
"""What the LLM API needs to know of a method beside its version's names: `methods/NAME/llmapi.py`, where it exists.

Names, fields and features of each version are in `backends/common/trtllm_versions`, which decides what is supported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.registry import discover_all


@dataclass(frozen=True)
class LlmApiMethod:
    """A method in the LLM API, registered as `METHOD` of `methods/NAME/llmapi.py`.

    Attributes:
        fields: returns the method's options as fields of speculative_config.
        step_tokens: returns the tokens that a step verifies for a number of draft tokens.
        has_head: the drafter is a head whose config.json has the keys of its authors or of speculators.
        reuses_blocks: prompts with a common prefix share its blocks of the KV cache.
        samples: versions before 1.3 keep the target's distribution for sampled requests.
        check: yields the problems of a recipe that concern this method alone.
        files: returns text files of the recipe by their names in the version directory of the served model.
    """

    fields: Callable[[PlanContext], Mapping[str, Any]] = lambda context: {}
    step_tokens: Callable[[int], int] = lambda tokens: tokens
    has_head: bool = False
    reuses_blocks: bool = True
    samples: bool = False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()
    files: Callable[[PlanContext], Mapping[str, Path]] = lambda context: {}


def find_method(name: str) -> LlmApiMethod:
    """Return the description of a supported method; without a file it has nothing beside its version's names."""
    found: LlmApiMethod = discover_all("trtspec.methods", "METHOD", "llmapi").get(name, LlmApiMethod())
    return found
