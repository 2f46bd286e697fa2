# SPDX-License-Identifier: Apache-2.0
"""The grammar of a request, as in NVIDIA/TensorRT-LLM:tensorrt_llm/sampling_params.py@000a01de."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: str | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def validate(self) -> None:
        if sum(map(bool, asdict(self).values())) > 1:
            raise ValueError("Only one guide can be used for a request")

    def compile(self) -> None:
        """Raise ValueError for a JSON schema that is not JSON, as xgrammar does in the executor."""
        if self.json is not None:
            json.loads(self.json)
