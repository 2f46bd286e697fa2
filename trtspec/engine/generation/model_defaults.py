# SPDX-License-Identifier: Apache-2.0
"""The model author's defaults (generation_config.json) as sampling options and logit edits.

Names, neutral values and meanings of the keys are the same as in transformers 5.23 (`GenerationConfig`,
`GenerationMixin._get_logits_processor`). `unsupported_keys` returns the others, so that `check` can list them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoints.generation_config import GenerationConfig, find_end_ids, read_generation_config
from trtspec.checkpoints.safe_json import repr_short
from trtspec.core.errors import CheckpointError
from trtspec.engine.generation.request import LARGEST, NO_EDITS, LogitEdits

MODEL = "model"  # the value of serving.defaults
MAX_WORDS = 4096
MAX_NGRAM = 1024
TOP_K = 50  # transformers' default if a model samples without top_k
# Keys that change the output, with their neutral values: the supported keys, and the sampling keys.
APPLIED: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1,), "no_repeat_ngram_size": (0,), "min_length": (0,), "min_new_tokens": (0,),
    "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "bad_words_ids": ([],), "sequence_bias": ([], {}),
}  # fmt: skip
SAMPLING: Mapping[str, tuple[Any, ...]] = {"temperature": (1,), "top_k": (TOP_K,), "top_p": (1,)}
# Unsupported keys that change the output, with their neutral values.
OTHERS: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "constraints": ([],),
    "force_words_ids": ([],),
    "watermarking_config": ({},),
    "token_healing": (False,),
    "stop_strings": ([], ""),
    "max_time": (),
}
OTHER_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0,), "top_h": (), "typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
}  # fmt: skip


@dataclass(frozen=True)
class ModelDefaults:
    """Defaults for requests that omit a setting.

    `sampling` has temperature, top_k and top_p if the model samples. `min_length` counts prompt and output, as in
    transformers; it is 0 if `edits` sets `min_tokens`.
    """

    edits: LogitEdits = NO_EDITS
    min_length: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)

    def edits_for(self, prompt_len: int) -> LogitEdits:
        least = self.min_length - prompt_len
        return replace(self.edits, min_tokens=least) if least > 0 else self.edits


def load_model_defaults(root: Path) -> ModelDefaults:
    """Load the defaults in a tokenizer's directory; raise CheckpointError as `read_defaults` does."""
    end_ids = find_end_ids(root, lambda token: None).ids
    return read_defaults(read_generation_config(root), end_ids)


def effective_keys(config: GenerationConfig) -> dict[str, Any]:
    """Return the keys that change the output, with their values; sampling keys only if the model samples."""
    samples = config.values.get("do_sample") is True
    neutral = {**APPLIED, **OTHERS, **(SAMPLING if samples else {}), **(OTHER_SAMPLING if samples else {})}
    found = {key: config.values[key] for key in neutral if key in config.values and not _is(config, key, neutral[key])}
    return {"do_sample": True} | found if samples else found


def unsupported_keys(config: GenerationConfig) -> dict[str, Any]:
    """Return the keys that change the output but are not supported as defaults, with their values."""
    found = {key: value for key, value in effective_keys(config).items() if key in OTHERS or key in OTHER_SAMPLING}
    if biases := [sequence for sequence, _ in _biases(config) if len(sequence) > 1]:
        found["sequence_bias"] = biases
    return found


def read_defaults(config: GenerationConfig, end_ids: Sequence[int] = ()) -> ModelDefaults:
    """Read the defaults from a generation_config.json; raise CheckpointError for an invalid value.

    `bad_words_ids` that consist of one of `end_ids` are ignored, as in transformers.
    """
    least = _count(config, "min_new_tokens", 1 << 31)
    bad = [word for word in _id_lists(config, "bad_words_ids") if word not in {(end,) for end in end_ids}]
    bad += [(token,) for token in _ids(config, "suppress_tokens")]
    edits = LogitEdits(
        repetition_penalty=_number(config, "repetition_penalty", 1.0, 1 / LARGEST, LARGEST),
        min_tokens=least,
        bad_words=tuple(bad),
        bias={sequence[0]: bias for sequence, bias in _biases(config) if len(sequence) == 1},
        no_repeat_ngram=_count(config, "no_repeat_ngram_size", MAX_NGRAM),
        begin_suppressed=_ids(config, "begin_suppress_tokens"),
    )
    min_length = 0 if "min_new_tokens" in config.values else _count(config, "min_length", 1 << 31)
    return ModelDefaults(edits, min_length, _sampling(config))


def _sampling(config: GenerationConfig) -> dict[str, float]:
    if config.values.get("do_sample") is not True:
        return {}
    return {
        "temperature": _number(config, "temperature", 1.0, 1e-6, LARGEST),
        "top_k": _count(config, "top_k", 1 << 31, TOP_K),
        "top_p": _number(config, "top_p", 1.0, 1e-9, 1.0),
    }


def _is(config: GenerationConfig, key: str, neutral: tuple[Any, ...]) -> bool:
    value = config.values[key]
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)


def _number(config: GenerationConfig, key: str, default: float, low: float, high: float) -> float:
    value = config.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _refuse(config, key, f"expected a number from {low:g} to {high:g}")
    return float(value)


def _count(config: GenerationConfig, key: str, most: int, default: int = 0) -> int:
    value = config.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _refuse(config, key, f"expected a whole number from 0 to {most:,}")
    return value


def _ids(config: GenerationConfig, key: str) -> tuple[int, ...]:
    value = config.values.get(key, [])
    if not _are_ids(value):
        raise _refuse(config, key, "expected a list of token ids")
    return tuple(value)


def _id_lists(config: GenerationConfig, key: str) -> list[tuple[int, ...]]:
    value = config.values.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_WORDS or not all(each and _are_ids(each) for each in value):
        raise _refuse(config, key, f"expected at most {MAX_WORDS} lists of token ids")
    return [tuple(each) for each in value]


def _biases(config: GenerationConfig) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the pairs (ids, bias) of `sequence_bias`, which is [[ids, bias], ...] in JSON."""
    value = config.values.get("sequence_bias") or []
    if not isinstance(value, list) or len(value) > MAX_WORDS:
        raise _refuse(config, "sequence_bias", "expected a list of [token ids, bias]")
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and pair[0] and _are_ids(pair[0])):
            raise _refuse(config, "sequence_bias", "expected a list of [token ids, bias]")
        bias = pair[1]
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not math.fabs(bias) <= LARGEST:
            raise _refuse(config, "sequence_bias", f"expected biases from -{LARGEST:g} to {LARGEST:g}")
        yield tuple(pair[0]), float(bias)


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_WORDS
        and all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value)
    )


def _refuse(config: GenerationConfig, key: str, expected: str) -> CheckpointError:
    return CheckpointError(f"{key} is {repr_short(str(config.values[key]))[1:-1]}, {expected}", where=str(config.path))
