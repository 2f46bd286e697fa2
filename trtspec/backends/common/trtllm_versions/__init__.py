# SPDX-License-Identifier: Apache-2.0
"""What each TensorRT-LLM version takes: trtllm-build's options, speculation modes, the LLM API's spelling, its company.

The facts are data, one file a minor version (1.2.yaml) and one of the containers, each with its public source; what is
inferred and was not read in that version itself says so. This module reads them and knows none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trtspec.backends.common.trtllm_versions.containers import containers, is_release
from trtspec.core.errors import TrtspecError
from trtspec.core.package_data import read_own

VERSIONS = Path(__file__).parent

OptionType = Literal["int", "str", "path", "flag", "switch", "strings"]


@dataclass(frozen=True)
class Option:
    """One option of trtllm-build.

    A "flag" takes no value, a "switch" takes enable or disable, "strings" several values; `choices` is empty where any
    value of the type will do, and `default` None where the option has none. `inferred` tells that it was not read in
    this version itself.
    """

    name: str
    type: OptionType
    default: Any
    choices: tuple[str, ...]
    inferred: bool
    note: str


@dataclass(frozen=True)
class TrtllmRelease:
    """A release and what it is used with: `triton` are the container tags (26.07) that ship it, oldest first.

    `tensorrt`, `cuda` and `driver` are those of the containers, "" where no container ships the release.
    """

    version: str
    triton: tuple[str, ...] = ()
    tensorrt: str = ""
    cuda: str = ""
    driver: str = ""


@dataclass(frozen=True)
class DecodingType:
    """One `decoding_type` of the LLM API's speculative_config: how it is spelled and which fields it takes.

    `required` are the fields without which it does not draft as asked; the one that holds the draft length comes first.
    `inside` says that it drafts within the target's class, and `beside` names the field that, set to false, has it
    draft beside it, "" where it cannot. `lengths` are the fields that make the length depend on the batch and are
    honoured, `models` the model types with layers for further tokens, where it drafts with those.
    """

    name: str
    fields: tuple[str, ...]
    required: tuple[str, ...]
    inferred: bool = False
    inside: bool = False
    beside: str = ""
    lengths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ApiSpec:
    """The LLM API's speculative_config: the key of the draft's path, and the decoding types by our method's name.

    Only what the PyTorch backend takes is there. `plain` are the classes of target that nothing drafts inside of, and
    `hands_states` those of them whose hidden states a net beside them gets. `counts` is how a schedule's keys count
    requests: "from" so many on, or "up_to" so many; `threshold` the fields of an acceptance rate and of its window.
    """

    draft_key: str
    methods: dict[str, DecodingType]
    plain: tuple[str, ...]
    hands_states: tuple[str, ...]
    counts: Literal["", "from", "up_to"]
    threshold: tuple[str, ...]

    def takes(self, method: str, architecture: str) -> bool:
        """Return whether a method drafts for a class of target."""
        kind = self.methods.get(method)
        if kind is None or not kind.inside or architecture not in self.plain:
            return kind is not None
        return bool(kind.beside) and architecture in self.hands_states


@dataclass(frozen=True)
class VersionSpec:
    """Everything known of a minor version; `options` is empty where it has no trtllm-build.

    `modes` are the values of --speculative_decoding_mode and the integers that an engine's config.json stores.
    """

    minor: str
    sources: tuple[str, ...]
    releases: tuple[TrtllmRelease, ...]
    options: dict[str, Option]
    modes: dict[str, int]
    api: ApiSpec

    def release(self, version: str) -> TrtllmRelease:
        """Return the release of this version, which may be a candidate for it."""
        return next(release for release in self.releases if is_release(version, release.version))


@cache
def version_specs() -> dict[str, VersionSpec]:
    """Return the version_specs by minor version, oldest first."""
    minors = sorted((path.stem for path in VERSIONS.glob("[0-9]*.yaml")), key=_numbers)
    return {minor: _load(minor) for minor in minors}


def version_spec_of(version: str) -> VersionSpec:
    """Return the spec that a version or a candidate for it stands in; TrtspecError where nothing is known of it."""
    for spec in version_specs().values():
        if any(is_release(version, release.version) for release in spec.releases):
            return spec
    known = ", ".join(release.version for spec in version_specs().values() for release in spec.releases)
    raise TrtspecError(f"nothing is known of TensorRT-LLM {version}", hint=f"known: {known}")


def minors_with(option: str) -> list[str]:
    """Return the minor versions whose trtllm-build has an option."""
    return [minor for minor, spec in version_specs().items() if option in spec.options]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _load(minor: str) -> VersionSpec:
    data = read_own(VERSIONS / f"{minor}.yaml")
    return VersionSpec(
        minor=minor,
        sources=tuple(data["sources"]),
        releases=tuple(_release(each) for each in data["releases"]),
        options={name: _option(name, each) for name, each in data.get("options", {}).items()},
        modes=data.get("modes", {}),
        api=_api(data["api"]),
    )


def _release(version: str) -> TrtllmRelease:
    shipping = [container for container in containers() if container.release == version]
    if not shipping:
        return TrtllmRelease(version)
    company = shipping[-1]
    tags = tuple(container.tag for container in shipping)
    return TrtllmRelease(version, tags, company.tensorrt, company.cuda, company.driver)


def _option(name: str, data: dict[str, Any]) -> Option:
    choices = ("enable", "disable") if data["type"] == "switch" else tuple(data.get("choices", ()))
    return Option(name, **{"default": None, "inferred": False, "note": "", **data, "choices": choices})


def _api(data: dict[str, Any]) -> ApiSpec:
    methods = {method: _decoding_type(each, data["common"]) for method, each in data["methods"].items()}
    return ApiSpec(
        draft_key=data["draft_key"],
        methods=methods,
        plain=tuple(data["plain"]),
        hands_states=tuple(data.get("hands_states", ())),
        counts=data.get("counts", ""),
        threshold=tuple(data.get("threshold", ())),
    )


def _decoding_type(data: dict[str, Any], common: list[str]) -> DecodingType:
    words: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return DecodingType(**{**words, "fields": (*common, *words.get("fields", ()))})
