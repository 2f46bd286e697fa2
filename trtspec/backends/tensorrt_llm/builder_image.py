# SPDX-License-Identifier: Apache-2.0
"""The digest of the builder's container image, from the container runtime and, for a build, from the registry.

An image on this machine has precedence over the registry's, as for `docker run`. The digest is that of the index if the
image is for several platforms, both in `RepoDigests` of an image that was pulled and in the registry.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trtspec.core.container_tools import DOCKER_CAUSES, FailureCause, ToolFailed, run_tool
from trtspec.core.errors import TrtspecError
from trtspec.core.image_references import DIGEST, parse_image

INSPECT_S, REGISTRY_S, PULL_S = 20.0, 60.0, 7200.0  # an image of TensorRT-LLM has tens of GB
DOCKER, DOCKER_HUB = "docker", "docker.io/"
ABSENT = FailureCause(r"(?i)no such (?:image|object)|image not known", "the image is not on this machine", "pull it")


def find_image(runtime: str, reference: str, *, online: bool) -> str:
    """Return what a runtime runs exactly the image of a tag by: NAME@sha256:..., or its id, sha256:..., without one.

    Returns "" if the image is not on this machine, unless `online`: then docker looks up the tag in the registry, and
    podman, which has no command for that, pulls the image. Raise DeployError or StepTimeout if the runtime fails.
    """
    found = _on_this_machine(runtime, reference)
    if found or not online:
        return found
    if runtime == DOCKER:
        name = parse_image(reference).name
        return f"{name}@{_in_registry(reference)}"
    run_tool([runtime, "pull", "--quiet", reference], f"{runtime} pull", DOCKER_CAUSES, PULL_S)
    return _on_this_machine(runtime, reference)


def is_image_id(image: str) -> bool:
    """Return whether an image is named by its id, since no registry has assigned a digest."""
    return image.startswith("sha256:")


def _on_this_machine(runtime: str, reference: str) -> str:
    """Return the digest reference or the id of the image that the runtime has for a tag, "" if it has none."""
    command = [runtime, "image", "inspect", "--format", "{{json .}}", reference]
    try:
        output = run_tool(command, f"{runtime} image inspect", (ABSENT, *DOCKER_CAUSES), INSPECT_S)
    except ToolFailed as error:
        if error.cause is ABSENT:
            return ""
        raise
    image = _parsed(output, command)
    digests, name = image.get("RepoDigests") or [], _familiar(parse_image(reference).name)
    digests = sorted(digests, key=lambda each: (_familiar(each.partition("@")[0]) != name, each))
    return str(digests[0]) if digests else f"sha256:{image['Id'].removeprefix('sha256:')}"  # podman omits sha256:


def _in_registry(reference: str) -> str:
    """Return the digest of a tag in its registry, without pulling the image."""
    command = [DOCKER, "buildx", "imagetools", "inspect", "--format", "{{json .Manifest.Digest}}", reference]
    digest = _parsed(run_tool(command, "docker buildx imagetools inspect", DOCKER_CAUSES, REGISTRY_S), command)
    if not re.fullmatch(DIGEST, str(digest)):
        raise TrtspecError(f"docker printed {str(digest)[:80]!r} as the digest of {reference}")
    return str(digest)


def _parsed(output: bytes, command: list[str]) -> Any:
    try:
        return json.loads(output)
    except ValueError:
        raise TrtspecError(f"{' '.join(command[:3])} printed {output[:80]!r}, not JSON") from None


def _familiar(name: str) -> str:
    """Return a name without Docker Hub's prefixes, which docker omits and podman does not."""
    return name.removeprefix(DOCKER_HUB).removeprefix("library/")
