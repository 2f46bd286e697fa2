# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints in many forms, each a choice for every dimension.

A form changes config.json, the tensors or the files of a random model. With `refuses`, the conversion must reject the
checkpoint, because two of its values conflict; all other forms must generate the text of transformers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import FAMILY_SHAPES, make_model

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
POSITIONS, PAIRS = 64, 4
BASE_DEFAULT = {"gemma3": 1e6, "mixtral": 1e6}


@dataclass
class Files:
    """A checkpoint before it is written; `generation` is generation_config.json, `beside` additional weights."""

    family: str
    config: Config
    tensors: Tensors
    generation: Config | None = None
    beside: dict[str, Tensors] = field(default_factory=dict)
    shards: int = 1

    def rope(self, **values: Any) -> None:
        """Replace every rotary key; a key with the value None is removed."""
        keys = (
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "original_max_position_embeddings",
            "rope_local_base_freq",
        )
        for key in keys:
            self.config.pop(key, None)
        if self.family == "phi3":  # its class has a default original length of 4096
            values.setdefault("original_max_position_embeddings", 32)
        self.config |= {key: value for key, value in values.items() if value is not None}

    def section(self, **values: Any) -> Config:
        """Return `rope_parameters` with these keys for layers without a window."""
        if self.family != "gemma3":
            return values
        return {"full_attention": values, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}


@dataclass(frozen=True)
class Form:
    """One choice for a dimension; `families` are the families that support it."""

    change: Callable[[Files], None]
    refuses: bool = False
    families: tuple[str, ...] = tuple(FAMILY_SHAPES)


DEPENDS = ("dynamic", "longrope", "without a length")  # parts of the names of forms that depend on the positions
ROPE = tuple(name for name in FAMILY_SHAPES if name not in ("phi3",))
FLAT = tuple(name for name in FAMILY_SHAPES if name not in ("phi3", "gemma3"))
# transformers itself fails if a scaling reads mixtral's head_dim of None
SCALED = tuple(name for name in ROPE if name != "mixtral")
SCALED_FLAT = tuple(name for name in FLAT if name != "mixtral")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG = {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.0, 5.0]}


def without(values: Config, *keys: str) -> Config:
    return {key: value for key, value in values.items() if key not in keys}


def set_rope(make: Callable[[Files], Config]) -> Callable[[Files], None]:
    return lambda files: files.rope(**make(files))


def in_section(**values: Any) -> Callable[[Files], None]:
    return set_rope(lambda files: {"rope_parameters": files.section(**values)})


def old(**values: Any) -> Callable[[Files], None]:
    return set_rope(lambda files: {"rope_theta": 5e5, "rope_scaling": values})


def beside_section(scaling: Config, **values: Any) -> Callable[[Files], None]:
    return set_rope(
        lambda files: {"rope_parameters": files.section(rope_type="default"), "rope_scaling": dict(scaling), **values}
    )


def nothing(files: Files) -> None:
    """Do not change the model."""


ROPES = {
    "none": Form(set_rope(lambda files: {})),
    "null": Form(lambda files: (files.rope(), files.config.update(rope_parameters=None))[0]),
    "base at the top": Form(set_rope(lambda files: {"rope_theta": 500.0})),
    "base in the section": Form(in_section(rope_type="default", rope_theta=500.0)),
    "base outside the section": Form(
        set_rope(lambda files: {"rope_parameters": files.section(rope_type="default"), "rope_theta": 500.0})
    ),
    "base in both": Form(
        set_rope(
            lambda files: {"rope_parameters": files.section(rope_type="default", rope_theta=500.0), "rope_theta": 500}
        )
    ),
    "bases differ": Form(
        set_rope(
            lambda files: {"rope_parameters": files.section(rope_type="default", rope_theta=500.0), "rope_theta": 50.0}
        ),
        refuses=True,
    ),
    "linear by type": Form(old(type="linear", factor=2.0), families=FLAT),
    "linear": Form(old(rope_type="linear", factor=2.0), families=ROPE),
    "linear in the section": Form(in_section(rope_type="linear", factor=2.0, rope_theta=500.0), families=ROPE),
    "dynamic": Form(old(rope_type="dynamic", factor=2.0), families=SCALED),
    "types differ": Form(old(rope_type="linear", type="dynamic", factor=2.0), refuses=True, families=ROPE),
    "llama3": Form(old(**LLAMA3), families=ROPE),
    "llama3 in the section": Form(in_section(**LLAMA3, rope_theta=500.0), families=ROPE),
    "llama3 outside the section": Form(beside_section(LLAMA3, rope_theta=500.0), families=ROPE),
    "llama3 without a base": Form(beside_section(LLAMA3), families=ROPE),
    "yarn": Form(old(**YARN), families=SCALED),
    "yarn by type": Form(old(type="yarn", **without(YARN, "rope_type")), families=SCALED_FLAT),
    "yarn outside the section": Form(beside_section(YARN, rope_theta=500.0), families=SCALED),
    "yarn with a base in the section": Form(
        set_rope(
            lambda files: {
                "rope_parameters": files.section(rope_type="default", rope_theta=500.0), "rope_scaling": dict(YARN),
            }
        ),
        refuses=True,
        families=SCALED_FLAT,
    ),
    "yarn with the length at the top": Form(
        set_rope(
            lambda files: {
                "rope_scaling": without(YARN, "original_max_position_embeddings"), "rope_theta": 500.0,
                "original_max_position_embeddings": 16,
            }
        ),
        families=SCALED_FLAT,
    ),
    "yarn without a length": Form(old(**without(YARN, "original_max_position_embeddings")), families=SCALED),
    "yarn of two lengths": Form(
        set_rope(lambda files: {"rope_scaling": dict(YARN), "original_max_position_embeddings": 32}),
        refuses=True,
        families=SCALED_FLAT,
    ),
    "yarn with an attention factor": Form(old(**YARN, attention_factor=1.2), families=SCALED),
    "yarn with mscale": Form(old(**YARN, mscale=1.0, mscale_all_dim=0.5), families=SCALED),
    "yarn with betas": Form(old(**YARN, beta_fast=16, beta_slow=2), families=SCALED),
    "yarn not truncated": Form(old(**YARN, truncate=False), families=SCALED_FLAT),
    "yarn in both": Form(
        set_rope(lambda files: {"rope_parameters": dict(YARN) | {"rope_theta": 500.0}, "rope_scaling": dict(YARN),
                                "rope_theta": 500.0}),
        families=SCALED_FLAT,
    ),
    "scalings differ": Form(
        set_rope(lambda files: {"rope_parameters": dict(YARN), "rope_scaling": {**YARN, "factor": 2.0}}),
        refuses=True,
        families=SCALED_FLAT,
    ),
    "scaling switched off": Form(
        set_rope(lambda files: {"rope_parameters": dict(YARN), "rope_scaling": {"rope_type": "default"}}),
        refuses=True,
        families=SCALED_FLAT,
    ),
    "unknown kind": Form(old(rope_type="magic", factor=2.0), refuses=True, families=FLAT),
    "longrope": Form(
        set_rope(lambda files: {"rope_parameters": {"rope_type": "longrope", "rope_theta": 500.0, **LONG}}),
        families=("phi3",),
    ),
    "longrope by an old name": Form(
        set_rope(lambda files: {"rope_scaling": {"type": "yarn", **LONG}, "rope_theta": 500.0}), families=("phi3",)
    ),
    "longrope outside the section": Form(
        set_rope(
            lambda files: {
                "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "longrope", **LONG},
                "rope_theta": 500.0,
            }
        ),
        families=("phi3",),
    ),
    "longrope with its own length": Form(
        set_rope(
            lambda files: {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 16, **LONG}}
        ),
        refuses=True,
        families=("phi3",),
    ),
    "longrope of any model": Form(
        old(rope_type="longrope", original_max_position_embeddings=32, **LONG), families=SCALED
    ),
    "base under windows": Form(
        set_rope(lambda files: {"rope_theta": 5e5, "rope_local_base_freq": 50.0}), families=("gemma3",)
    ),
    "flat section of gemma": Form(
        set_rope(lambda files: {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        refuses=True,
        families=("gemma3",),
    ),
    "section of another family": Form(
        set_rope(lambda files: {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        refuses=True,
        families=FLAT,
    ),
    "part of a head": Form(
        lambda files: files.config.update(partial_rotary_factor=0.5), refuses=True, families=("llama", "qwen2")
    ),
}  # fmt: skip


def tie(files: Files, head: str) -> None:
    """Tie by config.json; `head` is "absent", "equal", "other", or "alone" if the embedding is absent."""
    files.config["tie_word_embeddings"] = True
    if head == "equal":
        files.tensors[HEAD] = files.tensors[EMBEDDING].clone()
    elif head == "alone":
        del files.tensors[EMBEDDING]
    elif head == "absent":
        del files.tensors[HEAD]


def tie_by_default(files: Files) -> None:
    files.config.pop("tie_word_embeddings")
    if files.family.startswith("gemma"):
        del files.tensors[HEAD]


TIES = {
    "untied": Form(nothing),
    "absent": Form(lambda files: tie(files, "absent")),
    "equal": Form(lambda files: tie(files, "equal")),
    "its own": Form(lambda files: tie(files, "other")),
    "head alone": Form(lambda files: tie(files, "alone")),
    "default": Form(tie_by_default),
    "its own by default": Form(lambda files: files.config.pop("tie_word_embeddings"), families=("gemma2", "gemma3")),
    "no head": Form(lambda files: files.tensors.pop(HEAD), refuses=True),
}


def cast(dtype: torch.dtype, name: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files.tensors = {key: tensor.to(dtype) for key, tensor in files.tensors.items()}
        files.config["dtype"] = name

    return change


def wide_head(files: Files) -> None:
    """Store the LM head as float32, which config.json does not mention."""
    if HEAD in files.tensors:
        files.tensors[HEAD] = files.tensors[HEAD].float()


def old_dtype(files: Files) -> None:
    files.config["torch_dtype"] = files.config.pop("dtype")


# values are rounded to float16, so that float32 and float16 have the same ones
DTYPES = {
    "float16": Form(nothing),
    "float32": Form(cast(torch.float32, "float32")),
    "wide head": Form(wide_head),
    "torch_dtype": Form(old_dtype),
    "float64": Form(cast(torch.float64, "float64"), refuses=True),
}


def base_model(files: Files) -> None:
    files.tensors = {name.removeprefix("model."): tensor for name, tensor in files.tensors.items()}


def frequencies(files: Files) -> None:
    for layer in range(2):
        files.tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(PAIRS)


NAMES = {
    "usual": Form(nothing),
    "base model": Form(base_model),
    "frequencies": Form(frequencies),
    "value head": Form(lambda files: files.tensors.update({"v_head.summary.weight": torch.ones(1, 32).half()})),
    "surplus": Form(lambda files: files.tensors.update({"score.weight": torch.ones(1, 32).half()}), refuses=True),
}
LAYOUTS = {
    "one file": Form(nothing),
    "shards": Form(lambda files: setattr(files, "shards", 2)),
    "adapter beside": Form(
        lambda files: files.beside.update({"adapter_model.safetensors": {"lora_A.weight": torch.zeros(4, 4)}})
    ),
    "copy beside": Form(
        lambda files: files.beside.update(
            {"consolidated.safetensors": {name: tensor * 2 for name, tensor in files.tensors.items()}}
        )
    ),
}


def drop(*keys: str, **values: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        for key in keys:
            files.config.pop(key, None)
        files.config |= values

    return change


KEYS = {
    "all": Form(nothing),
    "no epsilon": Form(drop("rms_norm_eps")),
    "no activation": Form(drop("hidden_act", "hidden_activation")),
    "no bias keys": Form(drop("attention_bias", "mlp_bias"), families=("mistral", "mixtral", "phi3", "qwen2")),
    "no kv heads": Form(drop("num_key_value_heads"), refuses=True, families=("llama", "phi3", "qwen2", "qwen3")),
    "old length": Form(drop("max_position_embeddings", max_sequence_length=POSITIONS)),
    "no window key": Form(drop("sliding_window"), families=("mistral", "mixtral", "qwen2", "qwen3")),
    "no experts": Form(drop("num_experts_per_tok"), families=("mixtral",)),
    "activation": Form(drop(hidden_act="gelu", hidden_activation="gelu"), refuses=True),
}
BIASES = {
    "none": Form(nothing),
    "attention": Form(nothing, families=("llama", "qwen3", "gemma2", "gemma3")),
    "both": Form(nothing, families=("llama",)),
}
ENDS = {
    "none": Form(nothing),
    "config": Form(lambda files: files.config.update(eos_token_id=5)),
    "config's list": Form(lambda files: files.config.update(eos_token_id=[5, 9, 17])),
    "generation config": Form(lambda files: setattr(files, "generation", {"eos_token_id": [5, 9]})),
    "both": Form(
        lambda files: (files.config.update(eos_token_id=3), setattr(files, "generation", {"eos_token_id": 5}))[0]
    ),
}
# Forms in the order of their application: names and files change last.
DIMENSIONS: dict[str, dict[str, Form]] = {
    "bias": BIASES, "rope": ROPES, "keys": KEYS, "tie": TIES, "dtype": DTYPES, "names": NAMES, "layout": LAYOUTS,
    "ends": ENDS,
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A family and a choice for every dimension."""

    family: str
    chosen: tuple[tuple[str, str], ...]
    refuses: bool

    @property
    def name(self) -> str:
        """Return the family and the choices that are not the first of their dimension."""
        parts = [f"{key}: {form}" for key, form in self.chosen if form != next(iter(DIMENSIONS[key]))]
        return ", ".join([self.family, *parts])

    def write(self, root: Path) -> Path:
        bias = dict(self.chosen)["bias"]
        config, tensors = random_model(self.family, bias)
        files = Files(self.family, dict(config), dict(tensors))
        for key, form in self.chosen:
            DIMENSIONS[key][form].change(files)
        return write(files, root)


@cache
def random_model(family: str, bias: str) -> tuple[Config, Tensors]:
    """Return config and tensors of a random model, with values that both bfloat16 and float16 can represent."""
    from tempfile import TemporaryDirectory

    biases = {
        key: True
        for key, count in (("attention_bias", 1), ("mlp_bias", 2))
        if bias in ("attention", "both")[count - 1 :]
    }
    shape = {"max_position_embeddings": POSITIONS, "tie_word_embeddings": False, **biases}
    with TemporaryDirectory() as folder:
        root = make_model(Path(folder), family, seed=3, scale=0.35, dtype="float32", **shape)
        config = json.loads((root / "config.json").read_text())
        tensors = {name: tensor.bfloat16().half() for name, tensor in load_file(root / "model.safetensors").items()}
    return config | {"dtype": "float16"}, tensors


def write(files: Files, root: Path) -> Path:
    """Write files as transformers does."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(files.config))
    if files.generation is not None:
        (root / "generation_config.json").write_text(json.dumps(files.generation))
    for name, tensors in files.beside.items():
        save_file(tensors, root / name, metadata={"format": "pt"})
    if files.shards == 1:
        save_file(files.tensors, root / "model.safetensors", metadata={"format": "pt"})
        return root
    weight_map: dict[str, str] = {}
    names = sorted(files.tensors)
    for number in range(files.shards):
        shard = f"model-{number + 1:05}-of-{files.shards:05}.safetensors"
        part = {name: files.tensors[name] for name in names[number :: files.shards]}
        save_file(part, root / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return root


def variants(count: int, with_ends: bool, seed: int = 41) -> Iterator[Variant]:
    """Yield variants, each of which adds the most new pairs of forms among some random candidates."""
    rng, seen = random.Random(seed), set()
    for number in range(count):
        tried = [_draw(rng, number, with_ends) for _ in range(40)]
        best = max(tried, key=lambda each: len(set(_pairs(each)) - seen))
        seen |= set(_pairs(best))
        yield best


def _pairs(variant: Variant) -> Iterator[tuple[Any, Any]]:
    return combinations((("family", variant.family), *variant.chosen), 2)


def _draw(rng: random.Random, number: int, with_ends: bool) -> Variant:
    """Return a random variant; one that is rejected has a single reason."""
    families = list(FAMILY_SHAPES)
    family = families[number % len(families)]
    chosen, refuses = [], False
    names = list(DIMENSIONS)
    first = rng.choice(names) if rng.random() < 0.3 else ""
    for key in names:
        forms = {
            name: form
            for name, form in DIMENSIONS[key].items()
            if family in form.families and (not form.refuses or key == first) and (key != "ends" or with_ends)
        } or {"none": ENDS["none"]}
        name = rng.choice(list(forms))
        chosen.append((key, name))
        refuses |= forms[name].refuses
    by_key = dict(chosen)
    refuses |= by_key["keys"] == "old length" and any(part in by_key["rope"] for part in DEPENDS)
    return Variant(family, tuple(chosen), refuses)
