# SPDX-License-Identifier: Apache-2.0
"""The description of a dialect: how one project writes drafts of each kind.

Facts are the values of config.json under neutral names (`trtspec.methods.draft_formats.facts`). Tensors have the names
that most dialects share: `layers.0.*`, `markov_head.*`. One table maps both in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover_all, find
from trtspec.methods.medusa.heads import Names

PACKAGE, ATTRIBUTE = "trtspec.methods.draft_formats.formats", "DIALECT"

WEIGHTS = "model.safetensors"
EMBEDDING, LM_HEAD = OF_THE_TARGET = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Key:
    """Where a dialect has a fact: the keys that lead to it in config.json.

    `shift` is added to numbers of layers. Without `always` a fact that nothing departs from is left out. An `inverted`
    key is true where the fact is false. `is_needed` where the dialect's own code reads no file without it.
    """

    fact: str
    path: tuple[str, ...]
    shift: int = 0
    always: bool = True
    inverted: bool = False
    is_needed: bool = False

    def encode(self, value: Any) -> Any:
        """Return the fact's value as the dialect writes it."""
        if isinstance(value, tuple):
            return [number + self.shift for number in value]
        return not value if self.inverted else value


@dataclass(frozen=True)
class Form:
    """How a dialect writes one kind of draft.

    `means` are facts that it has no key for, where they are not what they are elsewhere. `fixed` are further keys, by
    path: a file that has another value there is not understood. `carried` are keys that nothing computes with, dots
    within a path, each with the value that it gets where nobody knows one, None for none. `marks` are keys and
    beginnings of tensor names by which a file is known to be of this dialect. `section` holds the config of the layers,
    None where that is the top.

    `renames` maps beginnings of tensor names to the dialect's own. `needs` are tensors without which it is not loaded,
    `shared` those that it takes from the target instead, and `lacks` has a regular expression of those that it has
    none of, with the reason. `told_by_tensors` are facts that need no key.

    Medusa heads have `names` of their own, and no layers; with a prefix among them they are written into the target's
    own config and tensors. `names_target` is a key that has to name the target. `weights` is the file of the tensors.
    """

    architecture: str
    keys: tuple[Key, ...]
    means: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    carried: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    section: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    maps_whole_vocabulary: bool = False  # d2t and t2d are there although all tokens are drafted
    has_t2d: bool = True
    says_verifier: bool = False  # speculators_config
    told_by_tensors: tuple[str, ...] = ()
    names: Names | None = None
    names_target: str = ""
    weights: str = WEIGHTS

    @property
    def paths(self) -> set[tuple[str, ...]]:
        """Return where it has keys of its own."""
        return {key.path for key in self.keys} | set(self.fixed) | {tuple(key.split(".")) for key in self.carried}

    @property
    def is_whole_model(self) -> bool:
        """Tell whether the target's own config and tensors are in its files."""
        return self.names is not None and bool(self.names.prefix)

    @property
    def key_of(self) -> dict[str, Key]:
        """Return its keys by the facts that they tell."""
        return {key.fact: key for key in self.keys}


@dataclass(frozen=True)
class Dialect:
    """One dialect; a module of `formats/` joins by defining it as `DIALECT`. `forms` are by kind, a method's name."""

    title: str
    forms: Mapping[str, Form]


def dialects() -> dict[str, Dialect]:
    """Return every dialect there is, by name."""
    return discover_all(PACKAGE, ATTRIBUTE)


def find_dialect(name: str) -> Dialect:
    """Return a dialect by name; an unknown one is an error that lists the known ones."""
    found: Dialect = find(PACKAGE, ATTRIBUTE, name, "dialect")
    return found


def forms_of(kind: str) -> dict[str, Form]:
    """Return how each dialect that has a kind writes it."""
    return {name: dialect.forms[kind] for name, dialect in dialects().items() if kind in dialect.forms}


def find_form(name: str, kind: str) -> Form:
    """Return how a dialect writes a kind of draft; raises TrtspecError where it has none of it."""
    dialect = find_dialect(name)
    if kind not in dialect.forms:
        known = ", ".join(forms_of(kind)) or "none"
        raise TrtspecError(f"{dialect.title} has no {kind} drafts", hint=f"dialects that have them: {known}")
    return dialect.forms[kind]
