# SPDX-License-Identifier: Apache-2.0
"""Comparison of a built engine's directory with the request.

config.json has the keys of NVIDIA/TensorRT-LLM:tensorrt_llm/builder.py@008b2b8d (EngineConfig.to_dict). It is parsed as
untrusted input, because an external program writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.common.trtllm_versions import is_release
from trtspec.checkpoints.safe_json import repr_short
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.errors import CheckpointError, StepError

CONFIG = "config.json"
VERSION, CACHE_TYPE = "version", "build_config.kv_cache_type"
NO_MODE = 1  # SpeculativeDecodingMode.NONE
MISSING = "missing"
_RANK = re.compile(r"rank(\d{1,4})\.engine")

# Keys of the checkpoint's config that the engine's pretrained_config contains, too.
_TAKEN_OVER = (
    "architecture", "dtype", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "mapping.world_size", "mapping.tp_size", "mapping.pp_size", "quantization.quant_algo",
    "quantization.kv_cache_quant_algo", "max_draft_len", "num_medusa_heads", "num_eagle_layers",
    "max_non_leaves_per_layer", "redrafter_num_beams", "redrafter_draft_len_per_beam",
)  # fmt: skip
# Options whose values the engine's config.json contains; switches are true or false in plugin_config.
_REPEATED = ("max_batch_size", "max_input_len", "max_beam_width")
_FLAGS = ("gather_context_logits", "gather_generation_logits")
_SWITCHES = ("use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding", "context_fmha")


@dataclass(frozen=True)
class ExpectedEngine:
    """The requested engine: trtllm-build's arguments, the checkpoint's config.json, and TensorRT-LLM's version.

    `modes` are the integers for the values of --speculative_decoding_mode.
    """

    arguments: Mapping[str, str]
    checkpoint: Mapping[str, Any]
    version: str
    modes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        return int(self.checkpoint["mapping"]["world_size"])

    def values(self) -> Iterator[tuple[str, object]]:
        """Yield dotted keys of the engine's config.json with their expected values."""
        yield VERSION, self.version
        for key in _TAKEN_OVER:
            if (value := _get_dotted(self.checkpoint, key)) != MISSING:
                yield f"pretrained_config.{key}", value
        for key in _REPEATED:
            if key in self.arguments:
                yield f"build_config.{key}", int(self.arguments[key])
        for key in _FLAGS:
            yield f"build_config.{key}", key in self.arguments or "gather_all_token_logits" in self.arguments
        for key in _SWITCHES:
            if key in self.arguments:
                yield f"build_config.plugin_config.{key}", self.arguments[key] == "enable"
        if "kv_cache_type" in self.arguments:
            yield CACHE_TYPE, self.arguments["kv_cache_type"]
        yield from self._speculation()

    def _speculation(self) -> Iterator[tuple[str, object]]:
        """Yield the expected values that depend on speculation; trtllm-build adds the draft tokens to max_seq_len."""
        mode = self.arguments.get("speculative_decoding_mode")
        draft_len = self._draft_len()
        yield "build_config.speculative_decoding_mode", self.modes[mode] if mode else NO_MODE
        yield "build_config.max_draft_len", draft_len
        if "max_seq_len" in self.arguments:
            eagle_layers = int(self.checkpoint.get("num_eagle_layers", 0))
            more = draft_len + eagle_layers if mode else 0
            yield "build_config.max_seq_len", int(self.arguments["max_seq_len"]) + more

    def _draft_len(self) -> int:
        if "redrafter_num_beams" in self.checkpoint:
            return int(self.checkpoint["redrafter_num_beams"]) * int(self.checkpoint["redrafter_draft_len_per_beam"])
        return int(self.arguments.get("max_draft_len", 0)) or int(self.checkpoint.get("max_draft_len", 0))


def parse_arguments(argv: Sequence[str]) -> dict[str, str]:
    """Return options by name; `--flag` has the value "", and of several values only the first is kept."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        elif name:
            found[name] = found[name] or word
    return found


def check_engine(path: Path, expected: ExpectedEngine) -> None:
    """Raise StepError, with all differences, if the engine in the directory `path` is not the expected one."""
    problems = [*_file_problems(path, expected.ranks), *_config_problems(path, expected)]
    if problems:
        details = "\n  ".join(problems)
        hint = "trtllm-build changed the request; see its log"
        raise StepError(f"the engine differs from the request:\n  {details}", hint=hint)


def _file_problems(path: Path, ranks: int) -> Iterator[str]:
    found = {int(name[1]): file for file in path.iterdir() if (name := _RANK.fullmatch(file.name))}
    for rank in range(ranks):
        file = found.pop(rank, None)
        if file is None or not file.is_file() or file.is_symlink() or not file.stat().st_size:
            yield f"rank{rank}.engine is missing or empty; {ranks} ranks were requested"
    for rank in sorted(found):
        yield f"rank{rank}.engine is unexpected; {ranks} ranks were requested"


def _config_problems(path: Path, expected: ExpectedEngine) -> Iterator[str]:
    try:
        config = read_json(path / CONFIG, MAX_CONFIG_BYTES)
    except CheckpointError as error:
        yield f"{CONFIG}: {error.message}"
        return
    for key, value in expected.values():
        found = _get_dotted(config, key)
        if not _AGREE.get(key, _is_equal)(found, value):
            yield f"{key} is {_format_value(found)}, expected {_format_value(value)}"
    yield from _num_tokens_problem(config, expected)


def _is_equal(found: object, value: object) -> bool:
    """Return whether a value equals the expected one; flags may be integers, as in TensorRT-LLM 1.0."""
    if isinstance(value, bool):
        return isinstance(found, int) and bool(found) is value
    return type(found) is type(value) and found == value


# the type of the cache is PAGED up to 1.1, and paged from 1.2 on (pull 8330)
_AGREE: dict[str, Callable[[Any, Any], bool]] = {
    VERSION: is_release,
    CACHE_TYPE: lambda found, value: isinstance(found, str) and found.lower() == value.lower(),
}


def _num_tokens_problem(config: dict[str, Any], expected: ExpectedEngine) -> Iterator[str]:
    """Yield a problem if max_num_tokens, which trtllm-build may lower, is too small for a full batch with drafts."""
    draft_len, batch = (_get_dotted(config, f"build_config.{key}") for key in ("max_draft_len", "max_batch_size"))
    tokens = _get_dotted(config, "build_config.max_num_tokens")
    if type(tokens) is not int or type(draft_len) is not int or type(batch) is not int:
        yield f"build_config.max_num_tokens is {_format_value(tokens)}, expected a number"
    elif tokens < batch * (draft_len + 1) and "speculative_decoding_mode" in expected.arguments:
        yield f"build_config.max_num_tokens is {tokens}, too few for {batch} requests with {draft_len} draft tokens"


def _get_dotted(document: Mapping[str, Any], key: str) -> Any:
    value: Any = document
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _format_value(value: object) -> str:
    return value if value == MISSING else repr_short(value) if isinstance(value, str) else str(value)[:100]
