# SPDX-License-Identifier: Apache-2.0
"""Artifacts in model repositories of the Hugging Face hub: hf:OWNER/NAME[:REVISION].

A push is one commit on the branch REVISION (default: main), with the artifact's files under their own paths, so that
the hub's pages and clients show them. Files of the previous artifact are removed; files that no push has written
remain. Two more files describe the artifact:

    .trtspec/image-manifest.json    the image manifest, which maps SHA-256 digests to paths
    .trtspec/config.json            its configuration
    .trtspec/referrers/HEX/         its referrers, such as signatures: index.json, and their blobs by SHA-256

HEX is the SHA-256 of the image manifest, so that referrers of an earlier artifact do not count. A push adds the
referrers to its commit; `sign` makes a commit of its own.

A commit changes a branch at once. A new branch is created from a finished commit, so it never has other content.
huggingface_hub sends and finds the credentials; files are read by `RegistryClient` from one commit.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from urllib.parse import quote

from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.registries.blobs import BlobSource
from trtspec.store.registries.http_client import (
    PARTIAL,
    TRANSIENT,
    Broken,
    RegistryClient,
    RegistryError,
    TokenRequest,
    TransferStopped,
    read_from,
    retry_after_s,
    url_origin,
)
from trtspec.store.registries.modelpack import FILE_PATH, MAX_MANIFEST_BYTES, Descriptor, parse_image_manifest
from trtspec.store.registries.referrers import Referrer, describe_referrer, parse_index, render_index
from trtspec.store.registries.repository import Opening, UnknownReference

EXAMPLE = "e.g. hf:team/model:v1"
INSTALL = "pip install 'trtspec[hub]'"
ACCESS_HINT = "check the name, and set HF_TOKEN to a token with access; trtspec does not create repositories"
IMAGE_MANIFEST, CONFIG = ".trtspec/image-manifest.json", ".trtspec/config.json"
REFERRERS, INDEX = ".trtspec/referrers/", "index.json"
MAIN = "main"
OK, NOT_FOUND = 200, 404
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REVISION = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"


def parse_address(rest: str) -> tuple[str, str]:
    """Return the repository OWNER/NAME and the revision of OWNER/NAME[:REVISION]; the default is `main`."""
    match = re.fullmatch(rf"(?://)?({_NAME}/{_NAME})(?::({_REVISION}))?", rest)
    if match is None:
        raise TrtspecError(f"{'hf:' + rest[:200]!r} is not hf:OWNER/NAME:REVISION", hint=EXAMPLE)
    return match[1], match[2] or MAIN


class HubRepository:
    """One model repository. `has_blob` finds the large files of the branch's head, whose SHA-256 the hub has."""

    place = ""

    def __init__(self, rest: str, opening: Opening) -> None:
        self._name, self.reference = parse_address(rest)
        self.label = f"hf:{self._name}"
        self._api, token = _new_client(self.label)
        self._client = RegistryClient(url_origin(self._api.endpoint), _Bearer(token), opening.patience, opening.stopped)
        self._paths: dict[str, tuple[str, str]] = {}  # commit and path, by digest
        self._commits: dict[str, str] = {}  # by digest of the image manifest
        self._attached: list[tuple[bytes, str]] = []  # referrers and subjects for the next commit
        self._additions: dict[str, Any] = {}  # by SHA-256 in hex
        self._small: dict[str, bytes] = {}
        self._lock = Lock()
        self._head = _Head()
        if opening.for_writing:
            self._head = self._read_head(self.reference)

    def interrupt(self) -> None:
        self._client.interrupt()

    def close(self) -> None:
        self._client.close()

    def failed(self) -> Callable[[Exception], None]:
        attempts = self._client.attempts(self.label)

        def handle(error: Exception) -> None:
            attempts.failed(error if isinstance(error, Broken) else Broken(str(error)))

        return handle

    def manifest(self, reference: str = "") -> bytes:
        """Return the image manifest of a revision, whose commit is used for all of its files, or of a referrer."""
        if reference in self._paths:
            return self._referrer(reference)
        reference = reference or self.reference
        commit = self._commit(reference)
        data = self._read(commit, IMAGE_MANIFEST)
        if data is None:
            raise UnknownReference(f"{self.label} has no artifact of trtspec in {reference}", hint=EXAMPLE)
        image = parse_image_manifest(self.label, data)
        self._paths |= {layer.digest: (commit, layer.annotations.get(FILE_PATH, "")) for layer in image.layers}
        self._paths[image.config.digest] = (commit, CONFIG)
        self._commits[f"sha256:{hashlib.sha256(data).hexdigest()}"] = commit
        return data

    def referrers(self, digest: str) -> list[Referrer]:
        """Return the referrers of an image manifest that was read, from the same commit."""
        commit = self._commits.get(digest) or self._commit(self.reference)
        found = self._read_index(commit, _folder(digest))
        self._paths |= {each.digest: (commit, f"{_folder(digest)}{each.hex}") for each in found}
        return found

    def _referrer(self, digest: str) -> bytes:
        """Return the manifest of a listed referrer, and note where its blobs are."""
        commit, path = self._paths[digest]
        if (data := self._read(commit, path)) is None:
            raise RegistryError("the file of a referrer is missing", where=f"{self.label}, {path}")
        folder, image = path.rpartition("/")[0], parse_image_manifest(self.label, data, digest)
        self._paths |= {each.digest: (commit, f"{folder}/{each.hex}") for each in image.layers}
        return data

    def _read_index(self, commit: str, folder: str) -> list[Referrer]:
        data = self._read(commit, f"{folder}{INDEX}")
        return parse_index(self.label, data) if data else []

    def attach(self, manifest: bytes, subject: str) -> None:
        """Add a referrer with a commit, or with that of `publish` if the branch does not have the subject yet."""
        self._attached.append((manifest, subject))
        if self._head.branch and self._head.image == subject:
            if operations := self._referrer_operations(subject, self._head):
                self._commit_to(self._head.branch, operations, "trtspec sign", self._head)
            self._attached.clear()
            self._head = self._read_head(self.reference)

    def _referrer_operations(self, subject: str, head: _Head) -> list[Any]:
        """Return the changes that add the attached referrers of an image manifest that the head lacks."""
        from huggingface_hub import CommitOperationAdd

        folder = _folder(subject)
        before = self._read_index(head.commit, folder)
        present, new = {each.digest for each in before}, dict[str, dict[str, Any]]()
        files: dict[str, bytes] = {}
        for manifest, belongs in self._attached:
            entry = describe_referrer(manifest)
            if belongs == subject and entry["digest"] not in present:
                new[entry["digest"]] = entry
                parsed = parse_image_manifest(self.label, manifest)
                blobs = [manifest, *(self._small[each.hex] for each in (parsed.config, *parsed.layers))]
                files |= {hashlib.sha256(data).hexdigest(): data for data in blobs}
        if not new:
            return []
        files[INDEX] = render_index([*(each.model_dump(exclude_defaults=True) for each in before), *new.values()])
        return [CommitOperationAdd(f"{folder}{name}", data) for name, data in files.items()]

    def _commit(self, revision: str) -> str:
        with _explained(self.label, f"no revision {revision}"):
            return str(self._api.model_info(self._name, revision=revision).sha)

    def tags(self) -> list[str]:
        with _explained(self.label, "no such repository"):
            refs = self._api.list_repo_refs(self._name)
        return sorted({each.name for each in (*refs.branches, *refs.tags) if re.fullmatch(_REVISION, each.name)})

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[memoryview]:
        commit, path = self._paths.get(blob.digest, ("", ""))
        if not path:
            raise RegistryError(f"the blob {blob.digest} is not part of this revision", where=self.label)
        yield from self._stream(commit, path, offset)

    def _stream(self, commit: str, path: str, offset: int) -> Iterator[memoryview]:
        url = f"{self._api.endpoint}/{self._name}/resolve/{commit}/{quote(path)}"
        with self._client.stream(url, {"Range": f"bytes={offset}-"} if offset else {}) as (response, pieces):
            if response.status in TRANSIENT:
                found = {name.lower(): value for name, value in response.getheaders()}
                raise Broken(f"HTTP status {response.status}", retry_after_s(found))
            if response.status not in (OK, PARTIAL):
                message = f"{path!a} cannot be read: HTTP status {response.status}"
                raise (_Absent if response.status == NOT_FOUND else RegistryError)(
                    message, where=self.label, hint=ACCESS_HINT
                )
            yield from read_from(response, pieces, offset)

    def _read(self, commit: str, path: str) -> bytes | None:
        attempts = self._client.attempts(self.label)
        while True:
            data = bytearray()
            try:
                for piece in self._stream(commit, path, 0):
                    data += piece
                    if len(data) > MAX_MANIFEST_BYTES:
                        raise RegistryError(f"{path} exceeds {MAX_MANIFEST_BYTES:,} bytes", where=self.label)
                return bytes(data)
            except Broken as error:
                attempts.failed(error)
            except _Absent:
                return None

    def has_blob(self, digest: str, nbytes: int) -> bool:
        return (digest.removeprefix("sha256:"), nbytes) in self._head.large

    def take_blob(self, digest: str, nbytes: int, places: list[str]) -> bool:
        return False

    def upload(self, source: BlobSource) -> str:
        """Upload a file, which becomes visible by the commit; the hub has large files after this call."""
        from huggingface_hub import CommitOperationAdd

        sha256 = source.sha256(is_counted=False)
        addition = CommitOperationAdd(source.record.path, str(source.path))
        with _explained(self.label, "no such repository"):
            base = self._head.branch or MAIN
            self._api.preupload_lfs_files(self._name, [addition], revision=base, num_threads=1, free_memory=False)
        sent = addition.upload_info.sha256  # None: the file is sent with the commit, because it is small text
        if sent is not None and sent.hex() != sha256:
            raise DigestMismatch("the file changed during the push; nothing was published", where=str(source.path))
        with self._lock:
            self._additions[sha256] = addition
        source.count(source.record.size)
        return sha256

    def upload_bytes(self, data: bytes) -> None:
        with self._lock:
            self._small[hashlib.sha256(data).hexdigest()] = data

    def publish(self, manifest: bytes, tag: str = "") -> None:
        """Commit all files to the branch; a new branch is created once the commit exists."""
        name = tag or self.reference
        head = self._head if name == self.reference else self._read_head(name)
        operations = self._operations(manifest, head)
        branch = head.branch or f"trtspec-{secrets.token_hex(8)}"
        with _explained(self.label, "no such repository"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the hub about the metadata of a model card
            if not head.branch:
                self._api.create_branch(self._name, branch=branch, revision=head.commit)
            try:
                made = self._commit_to(branch, operations, f"trtspec push {name}", head)
                if not head.branch:
                    self._api.create_branch(self._name, branch=name, revision=made)
            finally:
                if not head.branch:
                    with suppress(Exception):
                        self._api.delete_branch(self._name, branch=branch)

    def _commit_to(self, branch: str, operations: list[Any], message: str, head: _Head) -> str:
        """Commit changes to a branch whose head has not changed; return the commit."""
        with _explained(self.label, "no such repository"):
            made = self._api.create_commit(
                self._name, operations, commit_message=message, revision=branch, parent_commit=head.commit
            )
        return str(made.oid)

    def remove(self, tags: Sequence[str]) -> None:
        """Delete branches; the hub deletes the files of unreachable commits itself."""
        from huggingface_hub.errors import RevisionNotFoundError

        for tag in set(tags) & set(self.tags()):
            with _explained(self.label, f"no branch {tag}"), suppress(RevisionNotFoundError):
                self._api.delete_branch(self._name, branch=tag)

    def _operations(self, manifest: bytes, head: _Head) -> list[Any]:
        from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete

        image = parse_image_manifest(self.label, manifest)
        self._small[(own := hashlib.sha256(manifest).hexdigest())] = manifest
        wanted = {layer.annotations[FILE_PATH]: (layer.hex, layer.size) for layer in image.layers}
        wanted |= {CONFIG: (image.config.hex, image.config.size), IMAGE_MANIFEST: (own, len(manifest))}
        operations: list[Any] = []
        for path, key in wanted.items():
            if addition := self._additions.get(key[0]):
                is_same = addition.path_in_repo == path
                operations.append(addition if is_same else CommitOperationAdd(path, addition.path_or_fileobj))
            elif (data := self._small.get(key[0])) is not None:
                operations.append(CommitOperationAdd(path, data))
            elif path not in head.large.get(key, []):
                present = self._head.large[key]
                operations.append(CommitOperationCopy(present[0], path, src_revision=self._head.commit))
        kept = _folder(f"sha256:{own}")
        gone = sorted(path for path in head.paths - wanted.keys() if not path.startswith(kept))
        operations += self._referrer_operations(f"sha256:{own}", head)
        return [*operations, *(CommitOperationDelete(path, is_folder=False) for path in gone)]

    def _read_head(self, name: str) -> _Head:
        """Return the state of the branch, or of main's head if the branch does not exist."""
        with _explained(self.label, "no such repository"):
            refs = self._api.list_repo_refs(self._name)
            if name in {each.name for each in refs.tags}:
                hint = f"choose another name: hf:{self._name}:NAME"
                raise TrtspecError(f"{name} is a git tag, which a push does not move", where=self.label, hint=hint)
            branches = {each.name: each.target_commit for each in refs.branches}
            branch = name if name in branches else ""
            commit = str(branches[branch or MAIN])
            files = [
                each
                for each in self._api.list_repo_tree(self._name, recursive=True, revision=commit)
                if hasattr(each, "lfs")
            ]
        large: dict[tuple[str, int], list[str]] = {}
        for each in files:
            if each.lfs:
                large.setdefault((str(each.lfs.sha256), int(each.size)), []).append(str(each.path))
        data = self._read(commit, IMAGE_MANIFEST)
        paths = set[str]()
        with suppress(TrtspecError):
            layers = parse_image_manifest(self.label, data).layers if data else ()
            paths = {layer.annotations.get(FILE_PATH, "") for layer in layers} & {str(each.path) for each in files}
        paths |= {str(each.path) for each in files if str(each.path).startswith(REFERRERS)}
        image = f"sha256:{hashlib.sha256(data).hexdigest()}" if data else ""
        return _Head(branch, commit, large, paths, image)


class _Head:
    """The head that a push changes: large files by (SHA-256, size), and the paths of its artifact and its referrers.

    `branch` is "" if the branch does not exist yet; `commit` is then main's. `image` is the digest of the image
    manifest, or "".
    """

    def __init__(
        self,
        branch: str = "",
        commit: str = "",
        large: Mapping[tuple[str, int], list[str]] | None = None,
        paths: set[str] | None = None,
        image: str = "",
    ) -> None:
        self.branch, self.commit, self.image = branch, commit, image
        self.large, self.paths = dict(large or {}), paths or set()


def _folder(subject: str) -> str:
    """Return the directory of an image manifest's referrers."""
    return f"{REFERRERS}{subject.removeprefix('sha256:')}/"


class _Absent(RegistryError):
    """A file or revision does not exist."""


class _Bearer:
    """The token of huggingface_hub, for requests to the hub itself."""

    def __init__(self, token: str) -> None:
        self._token = token

    def header(self, scope: str = "") -> str:
        return f"Bearer {self._token}" if self._token else ""

    def answer(self, challenges: Sequence[str], sent: str, scope: str, request: TokenRequest) -> bool:
        return False

    def refused(self, where: str) -> TrtspecError:
        return RegistryError("access denied", where=where, hint=ACCESS_HINT)


def _new_client(label: str) -> tuple[Any, str]:
    """Return the hub's client and its token, or ""; raises TrtspecError without huggingface_hub."""
    try:
        from huggingface_hub import HfApi, get_token, utils
    except ImportError:
        message = "artifacts on the hub require huggingface_hub, which is not installed"
        raise TrtspecError(message, where=label, hint=INSTALL) from None
    silenced: Any = utils  # its names are not exported
    silenced.disable_progress_bars()  # a push has its own
    silenced.logging.set_verbosity_error()
    return HfApi(), get_token() or ""


@contextmanager
def _explained(label: str, absent: str) -> Iterator[None]:
    """Convert the hub client's errors; its messages are not quoted, because they contain signed addresses."""
    from huggingface_hub import errors

    try:
        yield
    except (TrtspecError, TransferStopped):
        raise
    except (errors.RevisionNotFoundError, errors.RepositoryNotFoundError):
        raise RegistryError(f"{absent}, or no access to it", where=label, hint=ACCESS_HINT) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = "another push may have changed the branch; push again" if status in (409, 412) else ACCESS_HINT
        raise RegistryError(f"the hub returned HTTP status {status}", where=label, hint=hint) from None
    except Exception as error:  # errors of its HTTP library, which differs between versions
        message = f"the request to the hub failed: {type(error).__name__}"
        raise RegistryError(message, where=label, hint="check the network and HF_ENDPOINT, then try again") from None


LOCATION = HubRepository
