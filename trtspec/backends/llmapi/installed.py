# SPDX-License-Identifier: Apache-2.0
"""Validates a model.yaml with the classes of the installed TensorRT-LLM.

The arguments differ between versions, and trtspec's data may be wrong. Importing tensorrt_llm is slow and initializes
CUDA and MPI, so this module runs as a separate process with a timeout. It reads the document as JSON from stdin and
prints the errors as a JSON list. Classes that open a model are not instantiated, because they look for GPUs and load a
tokenizer: only their field names are compared. Sections that contain plain values are instantiated.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import did_you_mean

OWN_KEYS = ("triton_config",)  # read by the served model, not by LLM
log = logging.getLogger(__name__)
TIMEOUT_S = 300.0
PROBE = "trtspec.backends.llmapi.installed"


def problems(document: dict[str, Any]) -> Iterator[str]:
    from tensorrt_llm.llmapi import llm_args

    arguments = llm_args.TorchLlmArgs
    known = {name for field, info in arguments.model_fields.items() for name in (field, info.alias) if name}
    for key in sorted(document.keys() - known - {*OWN_KEYS}):
        hint = did_you_mean(key, sorted(known))
        yield f"LLM does not support the argument {key}" + (f" ({hint})" if hint else "")
    yield from _complaints("kv_cache_config", document, lambda values: llm_args.KvCacheConfig(**values))
    yield from _complaints("speculative_config", document, lambda values: _make_speculative_config(llm_args, values))


def _make_speculative_config(llm_args: Any, values: dict[str, Any]) -> None:
    """Construct the speculative_config; raise ValueError if it does not support the PyTorch backend."""
    kind = values.get("decoding_type")  # `from_dict` removes it
    if hasattr(llm_args.DecodingBaseConfig, "from_dict"):
        config = llm_args.DecodingBaseConfig.from_dict(values)
    else:
        from pydantic import TypeAdapter

        config = TypeAdapter(llm_args.SpeculativeConfig).validate_python(values)
    if not config.supports_backend("pytorch"):
        raise ValueError(f"decoding_type {kind} does not support the PyTorch backend")
    if "validate" in vars(type(config)):  # the class's own method in 1.0 and 1.1, pydantic's in later versions
        config.validate()


def _complaints(section: str, document: dict[str, Any], make: Any) -> Iterator[str]:
    """Yield the error messages from constructing a section with `make`; old versions raise only the first one."""
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


def validate_installed(document: dict[str, Any], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return all errors that the installed LLM API reports for a model.yaml; empty if it is not installed.

    Raise TrtspecError if the validation itself fails or times out.
    """
    if not find_spec("tensorrt_llm"):
        return []
    command = [sys.executable, "-m", PROBE]
    log.info("running %s", shlex.join(command))
    try:
        process = subprocess.run(
            command, input=json.dumps(document), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrtspecError(f"importing tensorrt_llm took more than {timeout_s:.3g} s") from None
    output = process.stdout.splitlines()[-1:]  # tensorrt_llm prints other lines before it during import
    if process.returncode or not output:
        last = "\n".join(process.stderr.splitlines()[-5:])
        message = f"the installed tensorrt_llm cannot be imported:\n{last}"
        raise TrtspecError(message, hint="python -c 'import tensorrt_llm'")
    problems: list[str] = json.loads(output[0])
    return problems


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(problems(json.load(sys.stdin)))) + "\n")
