# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of several streams in parallel in one thread (plugins/sha256); `hashlib` is the reference."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Iterator, Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import HashBackend, HashlibBackend
from trtspec.kernels.autoload import host_library
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.selftest import SelfTestCheck

log = logging.getLogger(__name__)

BLOCK_BYTES = 64
MOST_STREAMS = 3  # TRTSPEC_SHA256_MOST_STREAMS

# The first 32 bits of the fractional parts of the square roots of the first eight primes (FIPS 180-4, 5.3.3).
INITIAL = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)

Block = np.ndarray[Any, np.dtype[np.uint8]]


class StreamDigest:
    """The state of a stream: the hash of its whole blocks, and the remaining bytes."""

    def __init__(self, code: CompiledSha256) -> None:
        self._code = code
        self.state = np.array(INITIAL, np.uint32)
        self._rest, self._nbytes = b"", 0

    def take_blocks(self, data: memoryview) -> Block:
        """Append bytes; return the whole blocks that remain to be hashed."""
        self._nbytes += data.nbytes
        if self._rest:
            missing = BLOCK_BYTES - len(self._rest)
            self._rest, data = self._rest + bytes(data[:missing]), data[missing:]
            if len(self._rest) < BLOCK_BYTES:
                return _as_array(b"")
            self._code.hash_blocks([(self.state, _as_array(self._rest))])
        end = data.nbytes - data.nbytes % BLOCK_BYTES
        self._rest = bytes(data[end:])
        return _as_array(data[:end])

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""
        zeros = -(len(self._rest) + 1 + 8) % BLOCK_BYTES
        padding = b"\x80" + bytes(zeros) + struct.pack(">Q", 8 * self._nbytes)
        state = self.state.copy()
        self._code.hash_blocks([(state, _as_array(self._rest + padding))])
        return state.astype(">u4").tobytes().hex()


class CompiledSha256:
    """Hashing with a library; raises TrtspecError if the processor lacks the instructions."""

    most = MOST_STREAMS

    def __init__(self, library: KernelLibrary) -> None:
        self._library = library
        self.hash_blocks([(np.array(INITIAL, np.uint32), _as_array(b""))])

    def begin(self) -> StreamDigest:
        """Return a digest of no bytes."""
        return StreamDigest(self)

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Append bytes to each of several digests."""
        left = [(digest.state, digest.take_blocks(data)) for digest, data in grown]
        while left := [each for each in left if each[1].size]:
            common = min(blocks.size for _, blocks in left)
            for first in range(0, len(left), MOST_STREAMS):
                self.hash_blocks([(state, blocks[:common]) for state, blocks in left[first : first + MOST_STREAMS]])
            left = [(state, blocks[common:]) for state, blocks in left]

    def hash_blocks(self, streams: Sequence[tuple[np.ndarray[Any, Any], Block]]) -> None:
        """Hash the same number of whole blocks of each stream into its state."""
        count = len(streams)
        states = (c_void_p * count)(*(state.ctypes.data for state, _ in streams))
        data = (c_void_p * count)(*(blocks.ctypes.data for _, blocks in streams))
        blocks = c_int64(streams[0][1].size // BLOCK_BYTES)
        if code := self._library.handle.trtspec_sha256_blocks(states, data, blocks, c_int32(count)):
            raise TrtspecError(f"sha256: {self._library.message(code)}", where=str(self._library.path))


def run_self_test(library: KernelLibrary) -> Iterator[SelfTestCheck]:
    """Yield a check per number of streams, with different lengths; none if this machine is unsupported."""
    try:
        code = CompiledSha256(library)
    except TrtspecError:
        return
    for streams in range(1, MOST_STREAMS + 1):
        texts = [bytes(range(256)) * (2 * number + 1) + bytes(57 * number) for number in range(streams)]
        digests = [code.begin() for _ in texts]
        for begin, end in ((0, 9), (9, 300), (300, None)):
            code.grow([(each, memoryview(text)[begin:end]) for each, text in zip(digests, texts, strict=True)])
        expected = [hashlib.sha256(text).hexdigest() for text in texts]
        same = [each.hexdigest() for each in digests] == expected
        yield SelfTestCheck(f"sha256, {streams} at once", same, "" if same else "a digest differs")


def choose_hashing(nbytes: int) -> HashBackend:
    """Return the implementation for `nbytes` bytes: the library if it is available and pays off, else hashlib."""
    library = host_library(nbytes)
    checks = list(run_self_test(library)) if library else []
    if library and checks and all(check.ok for check in checks):
        return CompiledSha256(library)
    if checks:
        log.warning("%s failed its self-test on this machine; hashing files with hashlib", library)
    return HashlibBackend()


def _as_array(data: bytes | memoryview) -> Block:
    return np.asarray(memoryview(data))
