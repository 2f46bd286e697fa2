# SPDX-License-Identifier: Apache-2.0
"""The fields of TensorRT-LLM's LLM API by release, recorded from published pages in llm_api.yaml.

They are independent of the package's own facts (trtspec/backends/common/trtllm_versions), so that they can validate the
documents that it emits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.upstream.strict import problems
from benchmarks.upstream.syntax import Field, parse_field
from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import VersionKey, version_key

DATA = Path(__file__).with_name("llm_api.yaml")
TYPE, SECTION = "decoding_type", "speculative_config:"
Fields = Mapping[str, Field]


@dataclass(frozen=True)
class PublishedRelease:
    """The fields of a release, by section as in `strict.problems`, and their source."""

    version: str
    source: str
    schema: Mapping[str, Fields]

    def types(self) -> dict[str, Fields]:
        """Return the fields of each decoding type, with `decoding_type` itself."""
        found = {name.removeprefix(SECTION): fields for name, fields in self.schema.items()}
        return {name: fields for name, fields in found.items() if TYPE in fields}

    def facts(self) -> dict[str, set[str]]:
        """Return the facts that `tensorrt_llm.read` reads from a wheel."""
        fields = {f"{name}.{field}" for name, found in self.types().items() for field in found if field != TYPE}
        return {"decoding_types": {*self.types()}, "fields": fields}


@cache
def published_releases() -> dict[str, PublishedRelease]:
    """Return the recorded releases by version, oldest first."""
    document = load_package_yaml(DATA)
    order = list(document["sources"])
    return {version: _release(document, order, version) for version in order}


def _release(document: dict[str, Any], order: list[str], version: str) -> PublishedRelease:
    def fields(section: Mapping[str, Mapping[str, str]]) -> dict[str, Field]:
        chosen = (names for span, names in section.items() if version in _releases_of(span, order))
        return {name: parse_field(name, kind) for names in chosen for name, kind in names.items()}

    schema = {"": fields(document["arguments"]), "kv_cache_config": fields(document["kv_cache_config"])}
    common = fields(document["common"])
    for name, section in document["types"].items():
        if any(version in _releases_of(span, order) for span in section):
            own = {TYPE: parse_field(TYPE, f"Literal[{name!r}]"), **common, **fields(section)}
            schema[SECTION + name] = own
    source = document["sources"][version]
    return PublishedRelease(version, source["source"] + (" (inferred)" if source.get("inferred") else ""), schema)


def _releases_of(span: str, order: list[str]) -> list[str]:
    first, last = span.split("..")
    return order[order.index(first) : order.index(last) + 1 if last else None]


def releases_near(version: str) -> list[PublishedRelease]:
    """Return the recorded release of a version, or else the nearest earlier and later ones of its minor version.

    A version between two recorded releases has the fields of one of them, so a document must be valid for both.
    """
    recorded, key = published_releases(), _key(version)
    if version in recorded:
        return [recorded[version]]
    minor = sorted((_key(each), each) for each in recorded if _key(each)[0][:2] == key[0][:2])
    near = [*[each for each in minor if each[0] < key][-1:], *[each for each in minor if each[0] > key][:1]]
    return [recorded[each] for _, each in near]


def _key(version: str) -> VersionKey:
    key = version_key(version)
    if key is None:
        raise ValueError(f"not a version: {version}")
    return key


def document_problems(document: Mapping[str, Any], version: str) -> list[str]:
    """Return what the recorded releases of a version do not accept of a document, with the release."""
    return list(_problems(document, version))


def _problems(document: Mapping[str, Any], version: str) -> Iterator[str]:
    near = releases_near(version)
    if not near:
        yield f"no fields are recorded for {version}"
    for release in near:
        yield from (f"{problem} ({release.version})" for problem in problems(document, release.schema))
