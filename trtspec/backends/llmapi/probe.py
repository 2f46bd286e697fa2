# SPDX-License-Identifier: Apache-2.0
"""Reads a model.yaml's document as JSON on stdin, prints as a JSON list what the installed LLM API says against it.

The classes that take a model are not made: they look for GPUs and load a tokenizer. Their fields' names are compared,
and those of their sections that are plain values are made. Runs as a process of its own (`installed`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from trtspec.core.registry import did_you_mean

OURS = ("triton_config",)  # read by the served model, not by LLM


def problems(document: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each problem."""
    from tensorrt_llm.llmapi import llm_args

    arguments = llm_args.TorchLlmArgs
    known = {name for field, info in arguments.model_fields.items() for name in (field, info.alias) if name}
    for key in sorted(document.keys() - known - {*OURS}):
        hint = did_you_mean(key, sorted(known))
        yield f"LLM takes no {key}" + (f" ({hint})" if hint else "")
    yield from _complaints("kv_cache_config", document, lambda values: llm_args.KvCacheConfig(**values))
    yield from _complaints("speculative_config", document, lambda values: _make_speculative_config(llm_args, values))


def _make_speculative_config(llm_args: Any, values: dict[str, Any]) -> None:
    """Make the config as the version does: by its own dispatch up to 1.2, by pydantic's union from then on."""
    kind = values.get("decoding_type")  # which `from_dict` takes out
    if hasattr(llm_args.DecodingBaseConfig, "from_dict"):
        made = llm_args.DecodingBaseConfig.from_dict(values)
    else:
        from pydantic import TypeAdapter

        made = TypeAdapter(llm_args.SpeculativeConfig).validate_python(values)
    if not made.supports_backend("pytorch"):
        raise ValueError(f"decoding_type {kind} has no PyTorch backend")
    if "validate" in vars(type(made)):  # in 1.0 and 1.1 a method of the class's own, elsewhere pydantic's
        made.validate()


def _complaints(section: str, document: dict[str, Any], make: Any) -> Iterator[str]:
    """Yield what making a section says: in the older versions an assertion or a ValueError, the first one alone."""
    from pydantic import ValidationError

    if section not in document:
        return
    try:
        make(dict(document[section]))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            yield ".".join(map(str, (section, *found["loc"]))) + f": {found['msg']}"
    except (ValueError, AssertionError, TypeError) as error:
        yield f"{section}: {error}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(problems(json.load(sys.stdin)))) + "\n")
