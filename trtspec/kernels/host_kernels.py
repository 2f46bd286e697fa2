# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels that builds use on the CPU: conversion arithmetic and hashing.

The library is loaded or compiled if it pays off. The arithmetic (plugins/quantize) takes numpy arrays of bit patterns
[rows, columns]; its results are bit-identical to `checkpoints.arithmetic`, and formats have the names of safetensors.
SHA-256 (plugins/sha256) hashes several streams in parallel in one thread; `hashlib` is the reference.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, Structure, addressof, byref, c_float, c_int32, c_int64, c_uint32, c_void_p, pointer, sizeof
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import HashBackend, HashlibBackend
from trtspec.kernels.abi import fields
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import HOST_PLUGINS, build_library, find_libraries, loads, plan_library
from trtspec.kernels.selftest import SelfTestCheck

log = logging.getLogger(__name__)

WORTH_BYTES = 512 << 20  # numpy converts as many in about a second
COMPILE_BYTES = 4 << 30  # for fewer, the three seconds of compiling (once per user) do not pay off
COMPILE_S = 60

FORMATS = {"F32": 1, "F16": 2, "BF16": 3, "F8_E4M3": 4}
ITEMS = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16, "F8_E4M3": np.uint8}
COUNT, CAST, QUANTIZE_ROWS = range(3)

BLOCK_BYTES = 64
MOST_STREAMS = 3  # TRTSPEC_SHA256_MOST_STREAMS

# The first 32 bits of the fractional parts of the square roots of the first eight primes (FIPS 180-4, 5.3.3).
INITIAL = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)

Bits = npt.NDArray[Any]
Block = np.ndarray[Any, np.dtype[np.uint8]]


def host_library(nbytes: int) -> KernelLibrary | None:
    """Return the library for work on `nbytes` bytes; for many bytes, compile it within `COMPILE_S` if none loads.

    Returns None if it does not pay off, or if there is neither a library nor a compiler; then numpy and hashlib compute
    the same results.
    """
    if nbytes < WORTH_BYTES:
        return None
    try:
        found = next(iter(find_libraries(HOST_PLUGINS)), None)
        if nbytes >= COMPILE_BYTES and not (found and loads(found)):
            found = build_library(plan_library(HOST_PLUGINS), COMPILE_S)
        return load_library(found) if found else None
    except (TrtspecError, OSError) as error:
        log.info("using numpy and hashlib, which are slower but equivalent: %s", error)
        return None


class Instructions(IntEnum):
    """`trtspec_instructions`: the instruction set of a call; the results do not depend on it."""

    FASTEST = 0
    PORTABLE = 1
    AVX512 = 2


class CensusStruct(Structure):
    """`trtspec_census`."""

    _fields_ = (*fields(c_int64, "nans", "infinities"), *fields(c_uint32, "largest", "reserved"))


class QuantizeArgs(Structure):
    """`trtspec_quantize_args`."""

    _fields_ = (
        ("struct_size", c_uint32),
        *fields(c_int32, "operation", "instructions", "source_dtype", "target_dtype", "reserved"),
        *fields(c_int64, "rows", "columns"),
        ("source", c_void_p),
        ("source_stride", c_int64),
        ("target", c_void_p),
        ("target_stride", c_int64),
        ("scales", c_void_p),
        ("census", POINTER(CensusStruct)),
    )


@dataclass(frozen=True)
class CompiledArithmetic:
    """The arithmetic of a library, with the fastest instruction set of this machine or a given one.

    Rows may have any stride and address; the values of a row are contiguous.
    """

    library: KernelLibrary
    instructions: Instructions = Instructions.FASTEST

    def count(self, bits: Bits, dtype: str) -> tuple[int, int, int]:
        """Return the pattern of the largest finite magnitude and the numbers of NaN and infinite values."""
        census = CensusStruct()
        self._run(COUNT, bits, dtype, census=pointer(census))
        return census.largest, census.nans, census.infinities

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Return the patterns converted from `source` to `target`; equal formats are returned as is."""
        return bits if source == target else self._cast(bits, source, target, None)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return a function that divides patterns of `dtype` by a scale and converts them to F8_E4M3."""
        divisor = c_float(float(scale))
        return lambda bits: self._cast(bits, dtype, "F8_E4M3", divisor)

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, npt.NDArray[np.float32], tuple[int, int, int]]:
        """Return F8_E4M3 patterns, the scale of each row [rows, 1], and the `count` of the input."""
        census, scales = CensusStruct(), np.empty((len(bits), 1), np.float32)
        encoded = np.empty(bits.shape, np.uint8)
        self._run(QUANTIZE_ROWS, bits, dtype, encoded, scales=scales.ctypes.data, census=pointer(census))
        return encoded, scales, (census.largest, census.nans, census.infinities)

    def _cast(self, bits: Bits, source: str, target: str, divisor: c_float | None) -> Bits:
        encoded = np.empty(bits.shape, ITEMS[target])
        scales = addressof(divisor) if divisor else None
        self._run(CAST, bits, source, encoded, target_dtype=FORMATS[target], scales=scales)
        return encoded

    def _run(self, operation: int, bits: Bits, dtype: str, encoded: Bits | None = None, **others: Any) -> None:
        args = QuantizeArgs(sizeof(QuantizeArgs), operation, self.instructions, FORMATS[dtype], **others)
        args.rows, args.columns = bits.shape
        args.source, args.source_stride = bits.ctypes.data, bits.strides[0]
        if encoded is not None:
            args.target, args.target_stride = encoded.ctypes.data, encoded.strides[0]
        if bits.dtype != ITEMS[dtype] or (bits.shape[1] > 1 and bits.strides[1] != bits.itemsize):
            raise TrtspecError(f"quantize: {bits.dtype} {bits.shape} {bits.strides} is not an array of {dtype} rows")
        if code := self.library.handle.trtspec_quantize_cpu(byref(args)):
            raise TrtspecError(f"quantize: {self.library.message(code)}", where=str(self.library.path))


def fastest_instructions(library: KernelLibrary) -> Instructions:
    """Return a library's fastest instruction set on this machine; raise TrtspecError if none is supported."""
    code = library.handle.trtspec_quantize_instructions()
    if code < 0:
        raise TrtspecError(library.message(code), where=str(library.path))
    return Instructions(code)


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


def run_sha256_self_test(library: KernelLibrary) -> Iterator[SelfTestCheck]:
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
    checks = list(run_sha256_self_test(library)) if library else []
    if library and checks and all(check.ok for check in checks):
        return CompiledSha256(library)
    if checks:
        log.warning("%s failed its self-test on this machine; hashing files with hashlib", library)
    return HashlibBackend()


def _as_array(data: bytes | memoryview) -> Block:
    return np.asarray(memoryview(data))
