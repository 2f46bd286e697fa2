# SPDX-License-Identifier: Apache-2.0
"""References of container images, such as nvcr.io/nvidia/tritonserver:26.07-py3@sha256:...

The grammar is that of distribution's reference.go and regexp.go (https://github.com/distribution/reference), without
digests other than SHA-256. A registry is a host with an optional port; without one, docker uses Docker Hub.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = rf"(?:{_HOST}/)?{_PATH}(?:/{_PATH})*"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST = r"sha256:[0-9a-f]{64}"
MAX_NAME_CHARS = 255

IMAGE_BY_DIGEST = rf"^{_NAME}(?::{_TAG})?@{DIGEST}$"
IMAGE = rf"^{_NAME}(?::{_TAG}|(?::{_TAG})?@{DIGEST})$"


@dataclass(frozen=True)
class ImageReference:
    """The parts of a reference; `tag` or `digest` may be empty, but not both. The digest includes its algorithm."""

    name: str
    tag: str
    digest: str

    @property
    def pinned(self) -> str:
        """Return NAME@DIGEST, or "" without a digest."""
        return f"{self.name}@{self.digest}" if self.digest else ""


def parse_image(text: str) -> ImageReference:
    """Return the parts of a reference that matches IMAGE; ValueError for any other text."""
    parts = re.fullmatch(rf"(?P<name>{_NAME})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{DIGEST}))?", text)
    if not parts or not (parts["tag"] or parts["digest"]):
        raise ValueError(f"not an image with a tag or a digest: {text!r}")
    return ImageReference(parts["name"], parts["tag"] or "", parts["digest"] or "")
