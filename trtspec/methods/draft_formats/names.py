# SPDX-License-Identifier: Apache-2.0
"""Maps a draft's tensor names between a source, the names that most dialects share, and a dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.methods.draft_formats.dialect import LM_HEAD, DraftSchema
from trtspec.methods.draft_formats.facts import Facts
from trtspec.methods.eagle3 import find_names
from trtspec.methods.medusa.heads import Heads, find_heads

EAGLE = ("eagle3", "p_eagle")
# Tensors that are only needed for training, or are computed.
_LEFT_OUT = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")
# ModelOpt stores a Markov head's tensors at the top level.
_BARE = re.compile(r"(markov_w[12]|gate_proj|joint_proj)\..*")


def shared_names(source: Source, kind: str, form: DraftSchema) -> dict[str, TensorInfo]:
    """Return a draft's tensors by the names that most dialects share; for Medusa heads, by TensorRT-LLM's names."""
    return dict(_head_tensors(source) if form.names else _renamed(source, kind, form))


def dialect_names(facts: Facts, form: DraftSchema) -> Callable[[str], str]:
    """Return the function that maps a common tensor name to the dialect's name."""
    if form.names is None:
        return lambda name: _replace_start(name, form.renames)
    heads = Heads(facts["num_heads"], facts["num_layers"], facts["hidden_size"], facts["vocab_size"], form.names)
    named = {rule.name: rule.sources[0].name for rule in heads.rules()}
    return lambda name: named.get(name, name)


def _head_tensors(source: Source) -> Iterator[tuple[str, TensorInfo]]:
    heads = find_heads(source)
    for rule in heads.rules():
        if stored := rule.sources[0].name:
            yield LM_HEAD if stored == heads.shared else rule.name, source.tensors[stored]


def _renamed(source: Source, kind: str, form: DraftSchema) -> Iterator[tuple[str, TensorInfo]]:
    eagle = find_names(source) if kind in EAGLE else None
    prefix = eagle.prefix if eagle else ""
    back = {renamed: shared for shared, renamed in form.renames.items() if renamed}
    if eagle:
        back = {f"{eagle.layer}.": "layers.0."}
    for stored, tensor in source.tensors.items():
        name = stored.removeprefix(prefix)
        if _LEFT_OUT.fullmatch(name):
            continue
        if not eagle and _BARE.fullmatch(name):
            name = f"markov_head.{name}"
        yield _replace_start(name, back), tensor


def _replace_start(name: str, starts: Mapping[str, str]) -> str:
    start = next((start for start in starts if name.startswith(start)), None)
    return name if start is None else f"{starts[start]}{name.removeprefix(start)}"
