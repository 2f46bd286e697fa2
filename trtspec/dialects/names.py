# SPDX-License-Identifier: Apache-2.0
"""Tensor names of a draft: from a source's to those that most dialects share, and to a dialect's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.source import Source
from trtspec.dialects.dialect import Form
from trtspec.methods.eagle3 import find_names

EAGLE = ("eagle3", "p_eagle")
# Kept for training, or computed.
_LEFT_OUT = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")
# ModelOpt has a Markov head's tensors at the top.
_BARE = re.compile(r"(markov_w[12]|gate_proj|joint_proj)\..*")


def shared_names(source: Source, kind: str, form: Form) -> dict[str, TensorInfo]:
    """Return a draft's tensors by the names that most dialects share."""
    return dict(_renamed(source, kind, form))


def _renamed(source: Source, kind: str, form: Form) -> Iterator[tuple[str, TensorInfo]]:
    eagle = find_names(source) if kind in EAGLE else None
    prefix = eagle.prefix if eagle else ""
    back = {own: shared for shared, own in form.renames.items() if own}
    if eagle:
        back = {f"{eagle.layer}.": "layers.0."}
    for stored, tensor in source.tensors.items():
        name = stored.removeprefix(prefix)
        if _LEFT_OUT.fullmatch(name):
            continue
        if not eagle and _BARE.fullmatch(name):
            name = f"markov_head.{name}"
        yield _replace_start(name, back), tensor


def own_name(name: str, form: Form) -> str:
    """Return a dialect's own name of a tensor."""
    return _replace_start(name, form.renames)


def _replace_start(name: str, starts: Mapping[str, str]) -> str:

    start = next((start for start in starts if name.startswith(start)), None)
    return name if start is None else f"{starts[start]}{name.removeprefix(start)}"
