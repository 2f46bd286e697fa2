# SPDX-License-Identifier: Apache-2.0
"""Facts about each TensorRT-LLM version: trtllm-build options, speculation modes, LLM API fields, containers.

The facts are data with public sources: one file per minor version (such as 1.2.yaml), and containers.yaml for NVIDIA's
containers. Facts that were taken from another version are marked inferred. This module only reads the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trtspec.core.errors import TrtspecError
from trtspec.core.installation import installed_version
from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import nearest_version, version_key

CONTAINERS = Path(__file__).with_name("containers.yaml")
_CANDIDATE = re.compile(r"rc\d+(\.post\d+)?")
VERSIONS = Path(__file__).parent
OptionType = Literal["int", "str", "path", "flag", "switch", "strings"]


@dataclass(frozen=True)
class Container:
    """One of NVIDIA's containers, by tag (such as 26.07), with its TensorRT-LLM release according to NVIDIA's table.

    `says` is the version that TensorRT-LLM itself reports in the container, "" if it equals `release`. `inferred` marks
    facts that were not taken from a file of that tag.
    """

    tag: str
    release: str
    tensorrt: str
    cuda: str
    driver: str
    says: str = ""
    inferred: bool = False


@cache
def containers() -> tuple[Container, ...]:
    """Return all containers, oldest first."""
    return tuple(Container(**each) for each in load_package_yaml(CONTAINERS)["containers"])


def container_images(version: str) -> tuple[str, ...]:
    """Return the names of the container images that include a release, newest first."""
    image = load_package_yaml(CONTAINERS)["image"]
    return tuple(image.replace("TAG", each.tag) for each in reversed(containers()) if each.release == version)


def is_release(version: object, release: str) -> bool:
    """Return whether a version is a release or one of its candidates: 1.2.0rc8 is a candidate for 1.2.0.

    Some containers include a candidate under the release's name.
    """
    if not isinstance(version, str) or not version.startswith(release):
        return False
    rest = version[len(release) :]
    return not rest or bool(_CANDIDATE.fullmatch(rest))


@dataclass(frozen=True)
class BuildOption:
    """An option of trtllm-build.

    The type "flag" is without a value, "switch" has enable or disable, and "strings" has several values. `choices` is
    empty if any value of the type is valid. `default` is None without a default. `inferred` marks an option that was
    taken from another version.
    """

    name: str
    type: OptionType
    default: Any = None
    choices: tuple[str, ...] = ()
    inferred: bool = False
    note: str = ""


@dataclass(frozen=True)
class TrtllmRelease:
    """A TensorRT-LLM release; `triton` are the tags (such as 26.07) of the containers that include it, oldest first.

    `tensorrt`, `cuda` and `driver` are the versions in the newest of these containers, "" without one. `released` is
    the date of its first file on PyPI, "" if it has none there.
    """

    version: str
    released: str = ""
    triton: tuple[str, ...] = ()
    tensorrt: str = ""
    cuda: str = ""
    driver: str = ""


@dataclass(frozen=True)
class DecodingType:
    """A `decoding_type` of the LLM API's speculative_config, with its fields.

    Attributes:
        required: fields that must be set; the first one is the draft length.
        inside: true if the drafter is part of the target's model class.
        beside: the field that moves the drafter outside the target's class if set to false; "" without one.
        lengths: supported fields that make the draft length depend on the batch.
        models: model types with MTP layers, if the type drafts with those.
        since: the first candidate known to have the type, if earlier ones of the minor version lack it.
    """

    name: str
    fields: tuple[str, ...]
    required: tuple[str, ...]
    inferred: bool = False
    inside: bool = False
    beside: str = ""
    lengths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    since: str = ""


@dataclass(frozen=True)
class ApiSpec:
    """The LLM API's speculative_config on the PyTorch backend; `methods` are its decoding types by method of trtspec.

    Attributes:
        draft_key: the field for the draft's path.
        plain: target classes that do not support drafting inside the class.
        hands_states: the plain classes that pass their hidden states to a separate drafter.
        drafting: classes known to support drafting inside; empty if unknown for this version.
        counts: meaning of a schedule's keys: "from" or "up_to" that number of requests.
        threshold: fields for a minimum acceptance rate and its window.
        since: the first version with a field that the first candidates of the minor version lack.
        until: the first version without a field that the candidates before it have.
    """

    draft_key: str
    methods: dict[str, DecodingType]
    plain: tuple[str, ...]
    hands_states: tuple[str, ...] = ()
    drafting: tuple[str, ...] = ()
    counts: Literal["", "from", "up_to"] = ""
    threshold: tuple[str, ...] = ()
    since: Mapping[str, str] = field(default_factory=dict)
    until: Mapping[str, str] = field(default_factory=dict)

    def has(self, method: str, version: str) -> bool:
        """Return whether a version of this minor version supports a method."""
        return method in self.methods and not _is_before(version, self.methods[method].since)

    def fields(self, method: str, version: str) -> tuple[str, ...]:
        """Return the fields of a method that exist in a version."""
        later = {name for name, first in self.since.items() if _is_before(version, first)}
        known = version_key(version) is not None
        gone = {name for name, first in self.until.items() if known and not _is_before(version, first)}
        return tuple(name for name in self.methods[method].fields if name not in later | gone)

    def takes(self, method: str, architecture: str) -> bool:
        """Return whether a method can draft for a target class."""
        kind = self.methods.get(method)
        if kind is None or not kind.inside or architecture not in self.plain:
            return kind is not None
        return bool(kind.beside) and architecture in self.hands_states

    def is_uncertain(self, method: str, architecture: str) -> bool:
        """Return whether it is unknown if a target class supports a method that drafts inside the class."""
        kind = self.methods.get(method)
        known = (*self.plain, *self.drafting)
        return bool(kind and kind.inside and self.drafting and architecture and architecture not in known)


def _is_before(version: str, first: str) -> bool:
    """Return whether a version precedes another; false if one of them is malformed or ""."""
    key, limit = version_key(version), version_key(first)
    return key is not None and limit is not None and key < limit


@dataclass(frozen=True)
class VersionSpec:
    """All facts about a minor version; `options` is empty for versions without trtllm-build.

    `modes` are the values of --speculative_decoding_mode, with the integers stored in an engine's config.json.
    """

    minor: str
    sources: tuple[str, ...]
    releases: tuple[TrtllmRelease, ...]
    api: ApiSpec
    options: dict[str, BuildOption] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def release(self, version: str) -> TrtllmRelease:
        """Return the release of a version, which may be a release candidate."""
        return next(release for release in self.releases if is_release(version, release.version))


@cache
def version_specs() -> dict[str, VersionSpec]:
    """Return all specs by minor version, oldest first."""
    minors = sorted((path.stem for path in VERSIONS.glob("[0-9]*.yaml")), key=minor_version)
    return {minor: _load(minor) for minor in minors}


def find_version_spec(version: str) -> VersionSpec:
    """Return the spec for a version or release candidate, or else for the nearest known version of the same minor.

    Raise TrtspecError for an unsupported version.
    """
    specs = {release.version: spec for spec in version_specs().values() for release in spec.releases}
    nearest = next((known for known in specs if is_release(version, known)), None) or nearest_version(version, specs)
    if nearest:
        return specs[nearest]
    supported = ", ".join(specs)
    raise TrtspecError(f"unsupported TensorRT-LLM version {version}", hint=f"supported: {supported}")


def minors_with(option: str) -> list[str]:
    """Return the minor versions whose trtllm-build has an option."""
    return [minor for minor, spec in version_specs().items() if option in spec.options]


def minor_version(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def offer_installed(
    package: str, methods: Callable[[], Mapping[str, str]], method: str, gpu: str | None, *, builds: bool = False
) -> tuple[bool, str]:
    """Return whether the installed `package` supports a method, and the reason.

    With `builds`, trtllm-build is required, which was removed after 1.2.1 (pull request 15918).
    """
    installed = installed_version(package)
    if not installed:
        return False, "TensorRT-LLM is not installed here"
    if gpu is None:
        return False, "TensorRT-LLM is installed, but the recipe does not set engine.gpu"
    if builds and minor_version(installed) >= (1, 3):
        return False, f"TensorRT-LLM {installed} does not include trtllm-build"
    if method not in methods():
        return False, f"TensorRT-LLM {installed} is installed, but does not support the method"
    return True, f"TensorRT-LLM {installed} is installed"


def _load(minor: str) -> VersionSpec:
    data = load_package_yaml(VERSIONS / f"{minor}.yaml")
    return VersionSpec(
        minor=minor,
        sources=tuple(data["sources"]),
        releases=tuple(_release(version, data.get("released", {}).get(version, "")) for version in data["releases"]),
        api=_api(**data["api"]),
        options={name: _option(name, **option) for name, option in _options(data).items()},
        modes=data.get("modes", {}),
    )


def _api(methods: dict[str, dict[str, Any]], common: list[str], **facts: Any) -> ApiSpec:
    kinds = {name: {**kind, "fields": [*common, *kind.get("fields", [])]} for name, kind in methods.items()}
    types = {name: DecodingType(**_with_tuples(kind)) for name, kind in kinds.items()}
    return ApiSpec(methods=types, **_with_tuples(facts))


def _options(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a version's options: those of the version `options_of`, with the differences in `options`."""
    other = data.get("options_of")
    found = _options(load_package_yaml(VERSIONS / f"{other}.yaml")) if other else {}
    inferred = {name: found[name] | {"inferred": True} for name in data.get("inferred_options", ())}
    return {**found, **inferred, **data.get("options", {})}


def _option(name: str, **facts: Any) -> BuildOption:
    if facts["type"] == "switch":
        facts["choices"] = ("enable", "disable")
    return BuildOption(name, **_with_tuples(facts))


def _with_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


def _release(version: str, released: str) -> TrtllmRelease:
    shipping = [container for container in containers() if container.release == version]
    if not shipping:
        return TrtllmRelease(version, released)
    newest, tags = shipping[-1], tuple(container.tag for container in shipping)
    return TrtllmRelease(version, released, tags, newest.tensorrt, newest.cuda, newest.driver)
