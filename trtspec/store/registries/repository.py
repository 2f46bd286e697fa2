# SPDX-License-Identifier: Apache-2.0
"""The interface of a location that has artifacts, and its discovery by the scheme of an address.

A kind of location is one module of `locations/`, called after its scheme, with a function `LOCATION` that opens an
address. Another package can provide one through the entry point group trtspec.store.registries.locations.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import find_extension
from trtspec.store.registries.blobs import BlobIndex, BlobSource
from trtspec.store.registries.http_client import Patience, RegistryError
from trtspec.store.registries.modelpack import Descriptor

LOCATIONS = "trtspec.store.registries.locations"
DIGEST_HINT = "push prints the digest of an address as `digest`; --manifest takes the one of `manifest`"
EXAMPLES = "e.g. oci://registry.example.com/team/model:v1 or file:models/layout:v1"


class UnknownReference(RegistryError):
    """A location does not exist, or has no manifest with a tag or digest, or no blob with a digest."""


class Repository(Protocol):
    """An open location: a repository of blobs and tagged image manifests.

    Methods may be called from several threads. They raise TrtspecError if repeating the call does not help.
    """

    label: str  # for messages
    place: str  # identifies the repository for BlobIndex; "" if its blobs cannot be mounted elsewhere
    reference: str  # the tag or digest of the address; "" if it has none

    def manifest(self, reference: str = "") -> bytes:
        """Return the image manifest with a tag or digest (default: the address's), which is not yet verified.

        Raises UnknownReference if the location has none.
        """

    def publish(self, manifest: bytes, tag: str = "") -> None:
        """Store an image manifest, whose blobs are present, under a tag (default: the address's)."""

    def remove(self, tags: Sequence[str]) -> None:
        """Remove tags and their manifests; blobs without a manifest are removed at once or by the registry's cleanup.

        Unknown tags are ignored. Blobs that a concurrent upload may need are kept.
        """

    def tags(self) -> list[str]:
        """Return the tags, sorted; raises UnknownReference if nothing was ever pushed here, as far as that is known."""

    def has_blob(self, digest: str, nbytes: int) -> bool:
        """Return whether a blob is present."""

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a blob from `offset`; may end early, or raise Broken if it should be called again.

        A piece is valid until the next one is requested.
        """

    def take_blob(self, digest: str, nbytes: int, places: list[str]) -> bool:
        """Copy a blob from another repository of the same registry; return False if none of `places` has it."""

    def upload(self, source: BlobSource) -> str:
        """Store a file as a blob; return its SHA-256, in hex."""

    def upload_bytes(self, data: bytes) -> None:
        """Store a short blob."""

    def failed(self) -> Callable[[Exception], None]:
        """Return a function that handles a Broken: it pauses, or raises TrtspecError if all attempts have failed."""

    def interrupt(self) -> None:
        """End the transfers of all threads; each of them raises an exception."""

    def close(self) -> None:
        """Release connections and files."""


@dataclass(frozen=True)
class Opening:
    """The circumstances in which a location is opened; `stopped` ends all its transfers."""

    for_writing: bool
    patience: Patience
    stopped: threading.Event
    known: BlobIndex


def is_location(text: str) -> bool:
    """Return whether a text is the address of a location, not a path."""
    return re.match(r"[a-z][a-z0-9]*://|(file|hf):", text) is not None


def open_location(address: str, opening: Opening) -> Repository:
    """Return the open location at SCHEME:REST; raises TrtspecError for an unknown scheme or a malformed address."""
    opened: Repository = _find_location(address)(address.partition(":")[2], opening)
    return opened


@contextmanager
def opened_location(
    address: str, patience: Patience | None = None, *, for_writing: bool = False
) -> Iterator[tuple[Repository, Opening]]:
    """Provide the open location at an address, and its circumstances; its transfers end with the block.

    Raises like `open_location`.
    """
    opening = Opening(for_writing, patience or Patience(), threading.Event(), BlobIndex())
    repository = open_location(address, opening)
    try:
        yield repository, opening
    finally:
        opening.stopped.set()
        repository.close()


def check_address(address: str, where: str) -> None:
    """Raise TrtspecError, which refers to `where`, if an address has no known scheme or is malformed.

    A location is not opened. Its module checks the address with the function `parse_address`, if it has one.
    """
    try:
        location = _find_location(address)
        if parse := getattr(import_module(location.__module__), "parse_address", None):
            parse(address.partition(":")[2])
    except TrtspecError as error:
        raise TrtspecError(error.message, where=where, hint=error.hint) from None


def _find_location(address: str) -> Callable[[str, Opening], Any]:
    if re.match(r"[A-Za-z0-9+.-]*:?//[^/@]*@(?!sha256:)", address):  # not repeated, because it may be a password
        raise TrtspecError("an address may not contain a user or a password", hint="docker login HOST stores them")
    scheme, colon, _ = address.partition(":")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9]*", scheme):
        raise TrtspecError(f"{address[:200]!r} is not the address of a registry or layout", hint=EXAMPLES)
    found: Callable[[str, Opening], Any] = find_extension(LOCATIONS, "LOCATION", scheme, "kind of location")
    return found
