# SPDX-License-Identifier: Apache-2.0
"""LM heads that config.json ties to the embedding although both are stored, and the comparison of stored tensors.

transformers 5.23 ties the two only if they are equal, and warns otherwise (modeling_utils.py, tie_weights). Engines
that load such a checkpoint themselves follow config.json and ignore the stored head. Tensors are compared by value,
across dtypes and files, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.safetensors import TensorInfo, read_tensor
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.files import file_identity

FLOATS = ("BF16", "F16", "F32")


def have_equal_values(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors have the same shape and values; stop reading at the first difference.

    Floating-point values are compared as float32, which is exact; 0 equals -0. Other dtypes are compared by their
    bytes. The result is cached as long as neither file changes. Raises CheckpointError if a file ends early.
    """
    if one.shape != other.shape:
        return False
    return _compare(one, other, file_identity(one.file), file_identity(other.file))


@lru_cache(maxsize=64)
def _compare(one: TensorInfo, other: TensorInfo, *identities: str) -> bool:
    are_floats = one.dtype in FLOATS and other.dtype in FLOATS
    if one.dtype != other.dtype and not are_floats:
        return False
    for left, right in zip(read_tensor(one), read_tensor(other), strict=True):
        if left == right and one.dtype == other.dtype:
            continue
        if not are_floats or not _are_equal_floats((left, one.dtype), (right, other.dtype)):
            return False
    return True


def _are_equal_floats(*pieces: tuple[bytes, str]) -> bool:
    import numpy as np  # needed only if the bytes differ

    from trtspec.checkpoints.arithmetic import to_floats

    left, right = (
        to_floats(np.frombuffer(piece, np.uint32 if dtype == "F32" else np.uint16), dtype) for piece, dtype in pieces
    )
    return bool(np.array_equal(left, right))


UNREAD = "tied to the embedding by config.json; compared with it when the weights are available"
FIX = (
    "set tie_word_embeddings: false in config.json to use the stored head, or remove {head} from the file to use the"
    " embedding"
)


@dataclass(frozen=True)
class Ties:
    """Names of an embedding and an LM head that config.json ties, and the result of comparing them.

    `differ` is set if both are stored with different values, and `are_unread` if the values are not available for
    comparison. `only_head` is (embedding name, head name) if only the head is stored.
    """

    embedding: str = ""
    head: str = ""
    differ: bool = False
    are_unread: bool = False
    only_head: tuple[str, str] | None = None

    @property
    def message(self) -> str:
        return (
            f"config.json ties {self.head} to {self.embedding} (tie_word_embeddings), but both are stored with"
            f" different values: transformers uses the stored head, engines that follow config.json the embedding"
        )

    def diagnose(self, *, converts: bool) -> Iterator[Diagnostic]:
        """Yield a diagnostic if the two differ: a warning if the checkpoint is converted, else an error."""
        if not self.differ:
            return
        hint = FIX.format(head=self.head)
        if converts:
            used = f"{self.message}; the conversion uses the stored head"
            yield Diagnostic("model", "tied-head", used, hint, "warning")
        else:
            yield Diagnostic("model", "tied-head", self.message, hint)


UNTIED = Ties()


def compare_ties(source: Source, embedding: str, head: str) -> Ties:
    """Compare an embedding and an LM head, given by their tensor names, that config.json ties."""
    stored, own = (source.tensors.get(name) for name in (embedding, head))
    if own is None:
        return UNTIED
    if stored is None:
        return Ties(embedding, head, only_head=(embedding, head))
    if source.absent:
        return Ties(embedding, head, are_unread=True)
    return Ties(embedding, head, differ=not have_equal_values(stored, own))


def find_ties(source: Source, text: ConfigReader) -> Ties:
    """Compare the embedding and the LM head of a model of unknown family, if config.json ties them.

    `text` is the text model's section of config.json.
    """
    if text.values.get("tie_word_embeddings", source.config.get("tie_word_embeddings")) is not True:
        return UNTIED
    found = [
        [name for name in source.tensors if name.endswith(end)] for end in ("embed_tokens.weight", "lm_head.weight")
    ]
    if any(len(names) != 1 for names in found):
        return UNTIED
    (embedding,), (head,) = found
    return compare_ties(source, embedding, head)
