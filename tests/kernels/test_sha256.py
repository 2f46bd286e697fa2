# SPDX-License-Identifier: Apache-2.0
"""The compiled SHA-256 agrees with hashlib, for any streams in any pieces."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.streaming_digest import StreamingDigests
from trtspec.core import hashing
from trtspec.core.hashing import HashlibBackend, files_sha256, set_hash_backend
from trtspec.kernels import host_kernels
from trtspec.kernels.bindings import load_library
from trtspec.kernels.build import HOST_PLUGINS
from trtspec.kernels.host_kernels import WORTH_BYTES, CompiledSha256, choose_hashing, run_sha256_self_test

UNSUPPORTED = "trtspec_sha256_blocks needs x86's SHA extensions"


def has_instructions() -> bool:
    return " sha_ni" in Path("/proc/cpuinfo").read_text()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_instructions(), reason=UNSUPPORTED),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on the PATH"),
]


@pytest.fixture(scope="module")
def code(build_kernels: Callable[..., Path]) -> CompiledSha256:
    return CompiledSha256(load_library(build_kernels(*HOST_PLUGINS)))


@pytest.fixture
def used(code: CompiledSha256) -> Iterator[CompiledSha256]:
    set_hash_backend(code)
    yield code
    set_hash_backend(HashlibBackend())


def random_bytes(count: int) -> bytearray:
    return bytearray(os.urandom(count))


@given(lengths=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=6), min_size=1, max_size=7))
@settings(max_examples=300, deadline=None)
def test_interleaved_pieces_of_many_streams_equal_hashlib(code: CompiledSha256, lengths: list[list[int]]) -> None:
    digests, oracles = [code.begin() for _ in lengths], [hashlib.sha256() for _ in lengths]
    for turn in range(max(map(len, lengths))):
        grown = [(number, random_bytes(of[turn])) for number, of in enumerate(lengths) if turn < len(of)]
        code.grow([(digests[number], memoryview(data)) for number, data in grown])
        for number, data in grown:
            oracles[number].update(data)
        assert [each.hexdigest() for each in digests] == [each.hexdigest() for each in oracles]


def test_every_length_around_block_boundaries_equals_hashlib(code: CompiledSha256) -> None:
    """Padding fits after up to 55 bytes of the last block; lengths have 64 bits."""
    data = random_bytes(200)
    for count in range(200):
        digest = code.begin()
        code.grow([(digest, memoryview(data)[:count])])
        assert digest.hexdigest() == hashlib.sha256(data[:count]).hexdigest()


def test_files_hashed_in_parallel_have_the_right_digests(
    used: CompiledSha256, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "PIECE_BYTES", 1 << 12)
    paths = [tmp_path / str(number) for number in range(8)]
    for number, path in enumerate(paths):
        path.write_bytes(random_bytes(number * 7001))
    read: list[int] = []
    for threads in (1, 2, None):
        assert files_sha256(paths, read.append, threads) == [sha256_of(path) for path in paths]
    assert sum(read) == 3 * sum(path.stat().st_size for path in paths)


def test_missing_file_is_an_error(used: CompiledSha256, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(5000))
    with pytest.raises(FileNotFoundError):
        files_sha256([tmp_path / "one", tmp_path / "none"])


@pytest.mark.parametrize("files", [1, 2, 5])
def test_ranks_are_hashed_while_they_are_written(
    used: CompiledSha256, tmp_path: Path, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.checkpoints.streaming_digest.STRETCH_BYTES", 1001)
    layout = lay_out([(name, "U8", (4000 + 77 * number,)) for number, name in enumerate("abc")])
    paths = [tmp_path / str(number) for number in range(files)]
    for path in paths:
        path.write_bytes(layout.header + random_bytes(layout.nbytes - len(layout.header)))
    opened = [os.open(path, os.O_RDWR) for path in paths]
    writes = {name: [(rank, layout.offsets[name]) for rank in range(files)] for name in "abc"}
    with StreamingDigests(opened, [layout] * files, writes) as growing:
        for name in "bca":
            for rank, descriptor in enumerate(opened):
                growing.written(rank, layout.offsets[name])
                os.pwrite(descriptor, random_bytes(1234), layout.offsets[name])
            growing.finish(name)
        assert growing.digests() == [sha256_of(path) for path in paths]
    for descriptor in opened:
        os.close(descriptor)


def test_self_test_detects_a_wrong_digest_and_falls_back_to_hashlib(
    code: CompiledSha256, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [check.ok for check in run_sha256_self_test(code._library)] == [True] * 3
    monkeypatch.setattr(host_kernels, "INITIAL", (1, *host_kernels.INITIAL[1:]))
    assert [check.ok for check in run_sha256_self_test(code._library)] == [False] * 3
    monkeypatch.setattr(host_kernels, "host_library", lambda nbytes: code._library)
    assert isinstance(choose_hashing(WORTH_BYTES), HashlibBackend)


def test_backend_is_selected_by_size_and_processor_support(
    code: CompiledSha256, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_kernels, "host_library", lambda nbytes: code._library if nbytes >= WORTH_BYTES else None)
    assert isinstance(choose_hashing(WORTH_BYTES), CompiledSha256)
    assert isinstance(choose_hashing(WORTH_BYTES - 1), HashlibBackend)
    monkeypatch.setattr(CompiledSha256, "hash_blocks", _unsupported)
    assert isinstance(choose_hashing(WORTH_BYTES), HashlibBackend)


def _unsupported(*_: object) -> None:
    from trtspec.core.errors import TrtspecError

    raise TrtspecError("sha256: this processor lacks the instructions")


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
