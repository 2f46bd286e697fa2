# SPDX-License-Identifier: Apache-2.0
"""Mutations of documents and of other bytes."""

from __future__ import annotations

import json
import random
from typing import Any

VALUES = [None, True, -1, 0, 1e308, "", "x", "\ud800", [], {}, [[]], {"a": {}}, 10**40, "9" * 3000, [None] * 3]


def flipped(data: bytes, random: random.Random) -> bytes:
    place, bit = random.randrange(len(data)), 1 << random.randrange(8)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def mutated(data: bytes, random: random.Random) -> bytes:
    """Return a document with a bit flipped, a piece removed or repeated, or a value of another type in it."""
    kind = random.randrange(4)
    if kind == 0 or not data:
        return flipped(data, random) if data else b"x"
    begin = random.randrange(len(data))
    end = min(len(data), begin + random.randrange(1, 40))
    if kind == 1:
        return data[:begin] + data[end:] if random.random() < 0.5 else data[:end] + data[begin:]
    try:
        document = json.loads(data)
    except ValueError:
        return data[:begin]
    holders: list[Any] = [document]
    for holder in holders:
        children = holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ()
        holders.extend(child for child in children if isinstance(child, dict | list) and child)
    holder = random.choice([each for each in holders if isinstance(each, dict | list)] or [{}])
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return json.dumps(random.choice(VALUES)).encode()
    key = random.choice(keys)
    if isinstance(holder, dict) and random.random() < 0.3:
        del holder[key]
    else:
        holder[key] = random.choice(VALUES)
    return json.dumps(document).encode()
