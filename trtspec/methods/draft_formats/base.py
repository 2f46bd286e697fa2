# SPDX-License-Identifier: Apache-2.0
"""The schema of a dialect: the file format in which one project stores drafts of each kind.

A fact is a property of a draft with a dialect-independent name (see `trtspec.methods.draft_formats.draft`). Tensors
have the names that most dialects share: `layers.0.*`, `markov_head.*`. The same table is used for reading and for
writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover_all, find_extension
from trtspec.methods.medusa import MedusaNames

PACKAGE, ATTRIBUTE = "trtspec.methods.draft_formats.formats", "DIALECT"

WEIGHTS = "model.safetensors"
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
MEDUSA = "medusa"  # the only kind without layers


@dataclass(frozen=True)
class Key:
    """The location of a draft property (fact) in the config.json of one file format (dialect).

    Attributes:
        fact: the property's name, which is the same in all dialects.
        path: the keys, separated by dots; the fact's name by default.
        shift: added to layer numbers when writing.
        always: if false, the key is omitted when the fact has its neutral value or is false.
        inverted: the key is true if the fact is false.
        is_needed: the project's code cannot load a file without this key.
    """

    fact: str
    path: str = ""
    shift: int = 0
    always: bool = True
    inverted: bool = False
    is_needed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path or self.fact)

    def encode(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [number + self.shift for number in value]
        return not value if self.inverted else value


def within(section: str, *keys: Key) -> tuple[Key, ...]:
    """Return the keys with `section` prepended to their paths."""
    return tuple(replace(key, path=f"{section}.{key.path}") for key in keys)


# Keys that several dialects share; z-lab/dflash:dflash/model.py@44947fb reads the first two at the top level.
BLOCK_KEYS = (
    Key("block_size", is_needed=True),
    Key("num_target_layers", is_needed=True),
    Key("hidden_layers", "dflash_config.target_layer_ids", shift=-1),
    Key("mask_token", "dflash_config.mask_token_id", is_needed=True),
)
MARKOV_KEYS = (Key("markov_rank"), Key("markov_head", "markov_head_type"))
CONFIDENCE_KEYS = (
    Key("has_confidence", "enable_confidence_head"),
    Key("confidence_with_markov", "confidence_head_with_markov"),
)
MEDUSA_SIZES = (Key("hidden_size"), Key("vocab_size"))
MEDUSA_CARRIED = dict.fromkeys(("dtype", "torch_dtype", "transformers_version", "_name_or_path"))


@dataclass(frozen=True)
class DraftSchema:
    """A dialect's schema for one kind of draft; dots separate the keys of a path in config.json.

    Attributes:
        keys: facts with a key.
        implied: values of facts without a key, where they differ from the neutral value.
        fixed: keys with a required value; a file with another value is rejected.
        carried: keys that do not affect computation, with a default value or None.
        marks: keys and tensor name prefixes that identify the dialect.
        section: the key of the layers' config, or None if it is at the top level.
        renames: the dialect's tensor name prefixes, by common prefix.
        needs: required tensors.
        shared: tensors that the dialect takes from the target instead of storing them.
        lacks: regular expressions of unsupported tensors, with the reason.
        in_tensors: facts that follow from the presence of tensors.
        names: naming scheme of Medusa heads, which are not layers. A scheme with a prefix stores the heads in the
            target's config and tensors.
        names_target: a key whose value must be the target's name.
        weights: the name of the weight file.
    """

    architecture: str
    keys: tuple[Key, ...]
    implied: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    carried: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    section: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    maps_whole_vocabulary: bool = False  # d2t and t2d are present even if all tokens are drafted
    has_t2d: bool = True
    has_speculators_config: bool = False
    in_tensors: tuple[str, ...] = ()
    names: MedusaNames | None = None
    names_target: str = ""
    weights: str = WEIGHTS

    @property
    def paths(self) -> set[str]:
        return {*(key.path for key in self.keys), *self.fixed, *self.carried}

    @property
    def includes_target(self) -> bool:
        """Return whether the dialect's files also contain the target's config and tensors."""
        return self.names is not None and bool(self.names.prefix)

    @property
    def keys_by_fact(self) -> dict[str, Key]:
        return {key.fact: key for key in self.keys}


@dataclass(frozen=True)
class DraftFormat:
    """A draft file format (dialect), a module's `DIALECT` in `formats/`; `schemas` are by kind (a method's name)."""

    title: str
    schemas: Mapping[str, DraftSchema]


def dialects() -> dict[str, DraftFormat]:
    return discover_all(PACKAGE, ATTRIBUTE)


def find_dialect(name: str) -> DraftFormat:
    """Return a draft file format (dialect) by name; raise TrtspecError, which lists all formats, if it is unknown."""
    found: DraftFormat = find_extension(PACKAGE, ATTRIBUTE, name, "dialect")
    return found


def schemas_for(kind: str) -> dict[str, DraftSchema]:
    """Return the schemas for a kind of draft, by name of the file format (dialect)."""
    return {name: dialect.schemas[kind] for name, dialect in dialects().items() if kind in dialect.schemas}


def find_schema(name: str, kind: str) -> DraftSchema:
    """Return a file format's schema for a kind of draft; raise TrtspecError if the format does not support it."""
    dialect = find_dialect(name)
    if kind not in dialect.schemas:
        known = ", ".join(schemas_for(kind)) or "none"
        raise TrtspecError(f"{dialect.title} does not support {kind} drafts", hint=f"supported by: {known}")
    return dialect.schemas[kind]
