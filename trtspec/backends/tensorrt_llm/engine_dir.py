# SPDX-License-Identifier: Apache-2.0
"""An engine directory held against what was asked for, before anything is served from it.

Its config.json has the keys of NVIDIA/TensorRT-LLM:tensorrt_llm/builder.py@008b2b8d (EngineConfig.to_dict). It comes
from a program of others, so it is read like any file that nobody vouches for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.common.trtllm_versions.containers import is_release
from trtspec.checkpoints.safe_json import shown
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.core.errors import CheckpointError, StepError

CONFIG = "config.json"
VERSION, CACHE_TYPE = "version", "build_config.kv_cache_type"
NO_MODE = 1  # SpeculativeDecodingMode.NONE
MISSING = "missing"
_RANK = re.compile(r"rank(\d{1,4})\.engine")

# What an engine's pretrained_config takes over from the checkpoint as it is.
_TAKEN_OVER = (
    "architecture",
    "dtype",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "mapping.world_size",
    "mapping.tp_size",
    "mapping.pp_size",
    "quantization.quant_algo",
    "quantization.kv_cache_quant_algo",
    "max_draft_len",
    "num_medusa_heads",
    "num_eagle_layers",
    "max_non_leaves_per_layer",
    "redrafter_num_beams",
    "redrafter_draft_len_per_beam",
)
# The options whose values config.json repeats; switches are plugin_config's, and true or false there.
_REPEATED = ("max_batch_size", "max_input_len", "max_beam_width")
_FLAGS = ("gather_context_logits", "gather_generation_logits")
_SWITCHES = ("use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding", "context_fmha")


@dataclass(frozen=True)
class Expected:
    """What an engine was asked to be: trtllm-build's arguments, the checkpoint's config.json, TensorRT-LLM's version.

    `modes` are the integers that stand for the values of --speculative_decoding_mode.
    """

    arguments: Mapping[str, str]
    checkpoint: Mapping[str, Any]
    version: str
    modes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """Return how many files an engine has."""
        return int(self.checkpoint["mapping"]["world_size"])

    def values(self) -> Iterator[tuple[str, object]]:
        """Yield the dotted keys of config.json with the values they have to have."""
        yield VERSION, self.version
        for key in _TAKEN_OVER:
            if (value := _look_up(self.checkpoint, key)) != MISSING:
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
        """Yield what drafting changes: upstream adds the drafts' tokens to what it is told."""
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
    """Return options by name from `--name value` and `--flag`, the flags as ""; of several values the first."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        elif name:
            found[name] = found[name] or word
    return found


def check_engine(path: Path, expected: Expected) -> None:
    """Raise StepError that names everything in which the engine at `path` is not the expected one."""
    problems = [*_file_problems(path, expected.ranks), *_config_problems(path, expected)]
    if problems:
        said = "\n  ".join(problems)
        hint = "trtllm-build made another engine than it was asked for; its log says what it changed"
        raise StepError(f"the engine is not the one that was asked for:\n  {said}", hint=hint)


def _file_problems(path: Path, ranks: int) -> Iterator[str]:
    found = {int(name[1]): file for file in path.iterdir() if (name := _RANK.fullmatch(file.name))}
    for rank in range(ranks):
        file = found.pop(rank, None)
        if file is None or not file.is_file() or file.is_symlink() or not file.stat().st_size:
            yield f"rank{rank}.engine is missing or empty; {ranks} ranks were asked for"
    for rank in sorted(found):
        yield f"rank{rank}.engine is there, and {ranks} ranks were asked for"


def _config_problems(path: Path, expected: Expected) -> Iterator[str]:
    try:
        config = read_json(path / CONFIG, MAX_CONFIG_BYTES)
    except CheckpointError as error:
        yield f"{CONFIG}: {error.message}"
        return
    for key, value in expected.values():
        found = _look_up(config, key)
        if not _AGREE.get(key, _is_alike)(found, value):
            yield f"{key} is {_shown(found)}, expected {_shown(value)}"
    yield from _num_tokens_problem(config, expected)


def _is_alike(found: object, value: object) -> bool:
    """Return whether a value is the expected one; a flag may be a number, as 1.0's dataclass has it."""
    if isinstance(value, bool):
        return isinstance(found, int) and bool(found) is value
    return type(found) is type(value) and found == value


def _is_spelled_alike(found: object, value: str) -> bool:
    """Return whether words are the same but for their case: PAGED up to 1.1, paged from 1.2 on (pull 8330)."""
    return isinstance(found, str) and found.lower() == value.lower()


_AGREE: dict[str, Callable[[Any, Any], bool]] = {VERSION: is_release, CACHE_TYPE: _is_spelled_alike}


def _num_tokens_problem(config: dict[str, Any], expected: Expected) -> Iterator[str]:
    """Tell of a step too small for all requests' drafts: upstream lowers the number where sequences are short."""
    draft_len, batch = (_look_up(config, f"build_config.{key}") for key in ("max_draft_len", "max_batch_size"))
    tokens = _look_up(config, "build_config.max_num_tokens")
    if type(tokens) is not int or type(draft_len) is not int or type(batch) is not int:
        yield f"build_config.max_num_tokens is {_shown(tokens)}, expected a number"
    elif tokens < batch * (draft_len + 1) and "speculative_decoding_mode" in expected.arguments:
        yield f"build_config.max_num_tokens is {tokens}, fewer than {batch} requests of {draft_len} drafts verify"


def _look_up(document: Mapping[str, Any], key: str) -> Any:
    value: Any = document
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _shown(value: object) -> str:
    return value if value == MISSING else shown(value) if isinstance(value, str) else str(value)[:100]
