# SPDX-License-Identifier: Apache-2.0
"""Every likely mistake of the formats is reported before anything is written, in each dialect that allows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.draft_formats.nets import LAYERS, NETS, VOCAB, Config, changed, make_target
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import SourceModel, load_model
from trtspec.core.errors import CheckpointError
from trtspec.methods.draft_formats.base import schemas_for
from trtspec.methods.draft_formats.draft import read_draft

Change = Callable[[Config, dict[str, Tensor]], None]
Fault = tuple[str, str, str, Change, str]  # kind, dialect, description, change, part of the message
NORMED = ("eagle3", "p_eagle")


def layer_key(kind: str, dialect: str) -> tuple[tuple[str, ...], int]:
    keys = schemas_for(kind)[dialect].keys_by_fact
    key = keys.get("aux_layers") or keys["hidden_layers"]
    return tuple(key.path.split(".")), key.shift


def set_at(path: tuple[str, ...], value: Any, config: Config, tensors: dict[str, Tensor]) -> None:
    for key in path[:-1]:
        config = config[key]
    config[path[-1]] = value


def set_size(key: str, value: int, config: Config, tensors: dict[str, Tensor]) -> None:
    config.get("transformer_layer_config", config)[key] = value


def pop(name: str, config: Config, tensors: dict[str, Tensor]) -> None:
    del tensors[next(each for each in tensors if each.endswith(name))]


def add(config: Config, tensors: dict[str, Tensor]) -> None:
    tensors["surplus.weight"] = torch.zeros(3)


def transpose(config: Config, tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].T


def name_ids(config: Config, tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def shift_marks(config: Config, tensors: dict[str, Tensor]) -> None:
    tensors["t2d"] = tensors["t2d"].roll(1)


def both_norms(config: Config, tensors: dict[str, Tensor]) -> None:
    config |= {"norm_before_fc": True, "fc_norm": True}


def two_words(config: Config, tensors: dict[str, Tensor]) -> None:
    config["norm_before_fc"] = True
    config["eagle_config"]["norm_before_fc"] = False


def call_it_eagle3(config: Config, tensors: dict[str, Tensor]) -> None:
    config["speculators_model_type"] = "eagle3"


def faults() -> Iterator[Fault]:
    for kind, dialect in NETS:
        path, shift = layer_key(kind, dialect)
        count = 3 if kind == "eagle3" else 2
        ids = [2, 4, 5] if count == 3 else [2, 6]  # the default layers for a target of LAYERS, by their inputs
        far = [*ids[:-1], LAYERS + 1 + shift]
        yield kind, dialect, "a layer too far", partial(set_at, path, far), r"but the target"
        order = [each + shift for each in reversed(ids)]
        yield kind, dialect, "layers out of order", partial(set_at, path, order), r"but the target"
        if kind != "p_eagle":  # this net reads two layers, but EAGLE-3's default is three
            wrong = [each + (0 if shift else -1) for each in ids]
            yield kind, dialect, "layers off by one", partial(set_at, path, wrong), r"shifted by"
        yield kind, dialect, "a transposed fc", transpose, r"fc\.weight.*transposed"
        yield kind, dialect, "a missing tensor", partial(pop, "mlp.up_proj.weight"), r"up_proj\.weight: missing"
        yield kind, dialect, "an unknown tensor", add, r"surplus\.weight"
        yield (
            kind,
            dialect,
            "another hidden size",
            partial(set_size, "hidden_size", 40),
            r"hidden states of 40|\[.*40.*\]",
        )
        yield kind, dialect, "another vocabulary", partial(set_size, "vocab_size", 96), r"96|d2t: missing"
        if mask := schemas_for(kind)[dialect].keys_by_fact.get("mask_token"):
            path = tuple(mask.path.split("."))
            yield kind, dialect, "no mask token", partial(set_at, path, None), r"mask.token"
            yield kind, dialect, "a mask token outside", partial(set_at, path, VOCAB), r"outside the vocabulary"
        if kind == "eagle3":
            yield kind, dialect, "ids in d2t", name_ids, r"d2t has absolute ids of the target"
            yield kind, dialect, "two norms", both_norms, r"both true"
            yield kind, dialect, "no lm_head", partial(pop, "lm_head.weight"), r"lm_head\.weight: missing"
            if dialect != "modelopt":
                yield kind, dialect, "other marks", shift_marks, r"t2d marks other ids"
            if dialect != "speculators":
                yield kind, dialect, "two words", two_words, r"differs between"
    yield "p_eagle", "speculators", "called EAGLE-3", call_it_eagle3, r"makes it a P-EAGLE net"
    yield "p_eagle", "speculators", "no state", partial(pop, "mask_hidden"), r"mask_hidden: missing"


FAULTS = list(faults())


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> SourceModel:
    return load_model(make_target(tmp_path_factory.mktemp("target") / "hf"), "auto")


def said(root: Path, target: SourceModel) -> str:
    """Return the messages for a draft: the error, or the warnings."""
    try:
        return "; ".join(each.message for each in read_draft(load_source(root), target).warnings)
    except CheckpointError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[" ".join(fault[:3]) for fault in FAULTS])
def test_checkpoint_fault_is_reported(fault: Fault, target: SourceModel, tmp_path: Path) -> None:

    kind, dialect, _, change, words = fault
    sound = NETS[kind, dialect](tmp_path / "sound")
    assert not re.search(words, said(sound, target), re.DOTALL)
    assert re.search(words, said(changed(sound, tmp_path / "faulty", change), target), re.DOTALL)
