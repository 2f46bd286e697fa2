# SPDX-License-Identifier: Apache-2.0
"""Facts about each TensorRT-LLM version: trtllm-build options, speculation modes, LLM API spelling, containers.

The facts are data with public sources: one file for each minor version (1.2.yaml) and one for NVIDIA's containers
(containers.yaml). Facts that were not read in that version itself are marked inferred. This module only reads the data.
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
    """A container by its tag (26.07), with its release in NVIDIA's table, and TensorRT, CUDA and driver.

    `says` is the version that TensorRT-LLM itself reports there if it is not the release, else ""; `inferred` marks a
    container that was not read in a file of that tag.
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
    """Return the containers, oldest first."""
    return tuple(Container(**each) for each in load_package_yaml(CONTAINERS)["containers"])


def container_images(version: str) -> tuple[str, ...]:
    """Return the container images, by tag, that ship a release, newest first."""
    image = load_package_yaml(CONTAINERS)["image"]
    return tuple(image.replace("TAG", each.tag) for each in reversed(containers()) if each.release == version)


def is_release(version: object, release: str) -> bool:
    """Return whether a reported version is a release or a candidate for it: 1.2.0rc8 for 1.2.0.

    Containers ship candidates under the release's name.
    """
    if not isinstance(version, str) or not version.startswith(release):
        return False
    rest = version[len(release) :]
    return not rest or bool(_CANDIDATE.fullmatch(rest))


@dataclass(frozen=True)
class BuildOption:
    """One option of trtllm-build.

    A "flag" stands alone, a "switch" is enable or disable, "strings" has several values. `choices` is empty if any
    value of the type is valid, and `default` is None without a default. `inferred` marks an option that was
    not read in this version itself.
    """

    name: str
    type: OptionType
    default: Any = None
    choices: tuple[str, ...] = ()
    inferred: bool = False
    note: str = ""


@dataclass(frozen=True)
class TrtllmRelease:
    """A release and its containers: `triton` are the container tags (26.07) that ship it, oldest first.

    `tensorrt`, `cuda` and `driver` are the versions in the containers, "" if no container ships the release.
    """

    version: str
    triton: tuple[str, ...] = ()
    tensorrt: str = ""
    cuda: str = ""
    driver: str = ""


@dataclass(frozen=True)
class DecodingType:
    """One `decoding_type` of the LLM API's speculative_config: its name and fields.

    `required` are the fields without which it does not draft as configured; the first holds the draft length. `inside`
    means that it drafts within the target's class, and `beside` is the field that makes it draft outside if set to
    false, "" if it cannot. `lengths` are the honoured fields that make the draft length depend on the batch. `models`
    are the model types with MTP layers, if the type drafts with those.
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
    """The LLM API's speculative_config: the key of the draft's path, and the decoding types by trtspec's method name.

    Covers the PyTorch backend only. `plain` are the target classes in which nothing can draft, `hands_states` those
    of them that pass their hidden states to a separate draft network, and `drafting` the classes known to draft inside
    (empty if the version's were not read). `counts` is the meaning of a schedule's keys:
    "from" that many requests on, or "up_to" that many. `threshold` are the fields of an acceptance rate and its window.
    `since` is the first version with a field, for those that the minor's first candidates lack.
    """

    draft_key: str
    methods: dict[str, DecodingType]
    plain: tuple[str, ...]
    hands_states: tuple[str, ...] = ()
    drafting: tuple[str, ...] = ()
    counts: Literal["", "from", "up_to"] = ""
    threshold: tuple[str, ...] = ()
    since: Mapping[str, str] = field(default_factory=dict)

    def fields(self, method: str, version: str) -> tuple[str, ...]:
        """Return the fields of a method in a version; `since` has the first version of those added later."""
        key = version_key(version)
        later = {name for name, first in self.since.items() if key and key < (version_key(first) or key)}
        return tuple(name for name in self.methods[method].fields if name not in later)

    def takes(self, method: str, architecture: str) -> bool:
        """Return whether a method supports a target class."""
        kind = self.methods.get(method)
        if kind is None or not kind.inside or architecture not in self.plain:
            return kind is not None
        return bool(kind.beside) and architecture in self.hands_states

    def is_uncertain(self, method: str, architecture: str) -> bool:
        """Return whether a method drafts inside a target class that may be a plain decoder."""
        kind = self.methods.get(method)
        known = (*self.plain, *self.drafting)
        return bool(kind and kind.inside and self.drafting and architecture and architecture not in known)


@dataclass(frozen=True)
class VersionSpec:
    """All facts about a minor version; `options` is empty without trtllm-build.

    `modes` are the values of --speculative_decoding_mode and the integers that an engine's config.json stores.
    """

    minor: str
    sources: tuple[str, ...]
    releases: tuple[TrtllmRelease, ...]
    api: ApiSpec
    options: dict[str, BuildOption] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)

    def release(self, version: str) -> TrtllmRelease:
        """Return the release of this version, which may be a release candidate."""
        return next(release for release in self.releases if is_release(version, release.version))


@cache
def version_specs() -> dict[str, VersionSpec]:
    """Return the specs by minor version, oldest first."""
    minors = sorted((path.stem for path in VERSIONS.glob("[0-9]*.yaml")), key=minor_version)
    return {minor: _load(minor) for minor in minors}


def find_version_spec(version: str) -> VersionSpec:
    """Return the spec of a version, of a candidate for it, or of the nearest known version of the same minor.

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
    """Return whether the installed `package` has a method, and the reason.

    The last release with trtllm-build is 1.2.1 (pull 15918).
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
        releases=tuple(_release(version) for version in data["releases"]),
        api=_api(**data["api"]),
        options={name: _option(name, **option) for name, option in data.get("options", {}).items()},
        modes=data.get("modes", {}),
    )


def _api(methods: dict[str, dict[str, Any]], common: list[str], **facts: Any) -> ApiSpec:
    kinds = {name: {**kind, "fields": [*common, *kind.get("fields", [])]} for name, kind in methods.items()}
    types = {name: DecodingType(**_with_tuples(kind)) for name, kind in kinds.items()}
    return ApiSpec(methods=types, **_with_tuples(facts))


def _option(name: str, **facts: Any) -> BuildOption:
    if facts["type"] == "switch":
        facts["choices"] = ("enable", "disable")
    return BuildOption(name, **_with_tuples(facts))


def _with_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}


def _release(version: str) -> TrtllmRelease:
    shipping = [container for container in containers() if container.release == version]
    if not shipping:
        return TrtllmRelease(version)
    newest, tags = shipping[-1], tuple(container.tag for container in shipping)
    return TrtllmRelease(version, tags, newest.tensorrt, newest.cuda, newest.driver)
