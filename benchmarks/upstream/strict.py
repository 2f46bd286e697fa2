# SPDX-License-Identifier: Apache-2.0
"""Validate emitted documents against the fields that were read from an engine's sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.upstream.syntax import Field


def problems(document: Mapping[str, Any], schema: Mapping[str, Mapping[str, Field]], section: str = "") -> list[str]:
    """Return the unknown fields, and the values that their fields do not accept, of a document and of its sections.

    A key of `schema` is the path of a section; "path:TYPE" is that of a section with the decoding_type TYPE.
    """
    return list(_problems(document, schema, section))


def _problems(document: Mapping[str, Any], schema: Mapping[str, Mapping[str, Field]], section: str) -> Iterator[str]:
    fields = schema[section]
    path = section.partition(":")[0]
    for key, value in document.items():
        where = f"{path}.{key}" if path else key
        if key not in fields:
            yield f"{where}: no such field"
        elif isinstance(value, Mapping) and (name := _section(where, value, schema)):
            if name in schema:
                yield from _problems(value, schema, name)
            else:
                yield f"{where}: no decoding_type {name.partition(':')[2]}"
        elif problem := fields[key].problem(value):
            yield f"{where}: {problem}"


def _section(where: str, value: Mapping[str, Any], schema: Mapping[str, Mapping[str, Field]]) -> str:
    """Return the name of the section of a mapping, "" if its fields were not read."""
    if any(name.startswith(f"{where}:") for name in schema):
        return f"{where}:{value.get('decoding_type')}"
    return where if where in schema else ""
