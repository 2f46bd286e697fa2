# SPDX-License-Identifier: Apache-2.0
"""A model whose config.json ties its LM head to its embedding, and whose file has both.

transformers 5.23 ties two equal tensors only, and warns where they differ (modeling_utils.py, tie_weights). Engines
that load such a checkpoint themselves go by config.json and leave the file's own head out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.checkpoints.equality import have_equal_values
from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic

UNREAD = "tied to the embedding by config.json; whether it is equal is compared once the weights are here"
FIX = (
    "set tie_word_embeddings: false in config.json if the file's own head is meant, or remove {head} from the file if"
    " the embedding is"
)


@dataclass(frozen=True)
class Ties:
    """What a source stores of an embedding and a head that its config.json ties.

    `differ` where both are stored and have different values, `are_unread` where the values are not here to be compared.
    `only_head` are the names of embedding and head where the head alone is stored.
    """

    embedding: str = ""
    head: str = ""
    differ: bool = False
    are_unread: bool = False
    only_head: tuple[str, str] | None = None

    @property
    def message(self) -> str:
        """Return both readings of tensors that differ."""
        return (
            f"config.json ties {self.head} to {self.embedding} (tie_word_embeddings), and the file has both with"
            f" different values: transformers uses the file's own head, engines that go by config.json the embedding"
        )

    def diagnose(self, *, converts: bool) -> Iterator[Diagnostic]:
        """Yield an error where an engine reads the checkpoint itself, a warning where the conversion chooses."""
        if not self.differ:
            return
        hint = FIX.format(head=self.head)
        if converts:
            used = f"{self.message}; the file's own head is used here"
            yield Diagnostic("model", "tied-head", used, hint, "warning")
        else:
            yield Diagnostic("model", "tied-head", self.message, hint)


UNTIED = Ties()


def compare_ties(source: Source, embedding: str, head: str) -> Ties:
    """Return what a source stores of two tensors that its config.json ties; reads up to the first difference."""
    stored, own = (source.tensors.get(name) for name in (embedding, head))
    if own is None:
        return UNTIED
    if stored is None:
        return Ties(embedding, head, only_head=(embedding, head))
    if source.absent:
        return Ties(embedding, head, are_unread=True)
    return Ties(embedding, head, differ=not have_equal_values(stored, own))


def ties_of(source: Source, text: ConfigReader) -> Ties:
    """Return the ties of a model that no family describes; `text` is the part of config.json about its language."""
    if text.values.get("tie_word_embeddings", source.config.get("tie_word_embeddings")) is not True:
        return UNTIED
    found = [
        [name for name in source.tensors if name.endswith(end)] for end in ("embed_tokens.weight", "lm_head.weight")
    ]
    if any(len(names) != 1 for names in found):
        return UNTIED
    (embedding,), (head,) = found
    return compare_ties(source, embedding, head)
