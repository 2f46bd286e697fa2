# SPDX-License-Identifier: Apache-2.0
"""Tokenizers and grammars of tests of constrained text, and oracles that share no code with llguidance."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SYMBOLS = [*'{}[]":,.- _\n', *string.digits, *string.ascii_lowercase, "A", "B", "C"]
MERGED = ['{"', '":', '",', "tr", "true", "fa", "null", ", ", ': "', "ab", "12", '"}']


def save_tokenizer(root: Path, symbols: Iterable[str]) -> Path:
    """Save a tokenizer of byte-level tokens, with `<end>` as id 0 and then `symbols`; encoding uses single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    def spelled(text: str) -> str:
        return "".join({" ": "Ġ", "\n": "Ċ"}.get(each, each) for each in text)

    vocabulary = {symbol: number for number, symbol in enumerate(["<end>", *map(spelled, symbols)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    root.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (root / "config.json").write_text('{"eos_token_id": 0}')
    return root


def random_schema(seed: int) -> dict[str, Any]:
    """Return a random schema of finite texts; the same one for the same seed."""
    return _schema(random.Random(seed), 3)


def _schema(chosen: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "pattern", "integer", "number", "boolean", "null", "enum", "const"]
    kind = chosen.choice(kinds + 3 * ["object", "array", "anyOf", "ref"] if depth else kinds)
    word = "".join(chosen.choices("abcdef", k=3))
    low = chosen.randint(-50, 50)
    most = chosen.randint(1, 3)
    leaves: dict[str, dict[str, Any]] = {
        "string": {"type": "string", "minLength": chosen.randint(0, 1), "maxLength": 4},
        "pattern": {"type": "string", "pattern": chosen.choice(["^[ab]{1,3}$", "^(x|yz)$", "^a_[0-9]$"])},
        "integer": {"type": "integer", "minimum": low, "maximum": low + chosen.randint(0, 200)},
        "number": {"type": "number", "minimum": 0, "maximum": 5, "multipleOf": 0.5},
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "enum": {"enum": [word, low, None, True, [1, "a"]][: chosen.randint(1, 5)]},
        "const": {"const": {word: low}},
    }
    if kind in leaves:
        return leaves[kind]
    if kind == "array":
        items = (
            {"items": _schema(chosen, depth - 1)} if most > 1 else {"prefixItems": [_schema(chosen, 0)], "items": False}
        )
        return {"type": "array", **items, "minItems": chosen.randint(0, 1), "maxItems": most}
    if kind == "anyOf":
        return {"anyOf": [_schema(chosen, depth - 1) for _ in range(most)]}
    if kind == "ref":
        return {"$defs": {"part": _schema(chosen, 0)}, "type": "object", "properties": {"a": {"$ref": "#/$defs/part"}},
                "required": ["a"], "additionalProperties": False}  # fmt: skip
    names = chosen.sample(["a", "b_c", "id", "true", "x1"], most)
    required = [name for name in names if chosen.random() < 0.6]
    properties = {name: _schema(chosen, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def has_references_of_its_own(schema: Any) -> bool:
    """Return whether a schema below the top has references, which are read from the top."""
    return any("$ref" in json.dumps(part) for part in _parts(schema))


def _parts(schema: Any) -> list[Any]:
    if "$defs" in schema:
        return []
    return [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items") or {}]
