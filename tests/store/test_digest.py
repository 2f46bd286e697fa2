# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import combine_segments
from trtspec.store.digest import DigestCache, canonical, compute_digest
from trtspec.store.files import FileReader

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.integers()
    | st.sampled_from([0.0, -0.0, 1.0])
    | st.floats(allow_nan=False)
    | st.text("a1:\ud800", max_size=3)
    | st.binary(max_size=2)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("a1", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)

AT_ANY_LOAD = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # both depend on the clock


def typed(value: object) -> object:
    """Return a form that is equal for two values only if types and contents are equal at every level."""
    if isinstance(value, dict):
        return dict, frozenset((key, typed(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(typed, value))
    return type(value), repr(value)


@pytest.mark.slow
@AT_ANY_LOAD
@given(st.lists(VALUES, min_size=2, max_size=6))
def test_canonical_forms_are_equal_only_for_equal_values(values: list[object]) -> None:
    for one in values:
        for other in values:
            assert (canonical(one) == canonical(other)) == (typed(one) == typed(other))


@AT_ANY_LOAD
@given(VALUES, VALUES)
def test_canonical_form_is_never_a_prefix_of_another(one: object, other: object) -> None:
    assert canonical(one) == canonical(other) or not canonical(other).startswith(canonical(one))


class Colour(Enum):
    RED = 1


class Number(IntEnum):
    ONE = 1


@dataclass(frozen=True)
class Source:
    digest: str
    where: str = field(default="", metadata={"key": False})


@dataclass(frozen=True)
class Other:
    digest: str


def test_canonical_forms_of_similar_values_differ() -> None:
    lookalikes = [1, True, 1.0, "1", b"1", None, "", (), [], {}, (1,), [1], Number.ONE, "RED", Colour.RED]
    assert len({canonical(each) for each in lookalikes}) == len(lookalikes)


def test_canonical_form_ignores_dict_order() -> None:
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})


def test_canonical_form_of_a_dataclass_has_its_name_and_key_fields() -> None:
    assert canonical(Source("x", where="/here")) == canonical(Source("x", where="/there"))
    assert canonical(Source("x")) != canonical(Source("y"))
    assert canonical(Source("x")) != canonical(Other("x"))


@dataclass
class Mutable:
    value: int


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [Path("x"), {1, 2}, Mutable(1), Text("x"), Source, object(), [{"a": Path("x")}]])
def test_canonical_form_of_an_unsupported_type_raises_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="has no canonical form"):
        canonical(value)


def test_canonical_form_and_digest_match_golden_values() -> None:
    value = {"b": (1, True, 1.5, None), "a": ["ä", b"\x00"]}
    assert canonical(value) == b"D41:S1:aL9:S2:\xc3\xa4Y1:\x00S1:bT17:I1:1B1:1F3:1.5N0:"
    assert compute_digest("tag/1", 1) == hashlib.sha256(b"tag/1\nI1:1").hexdigest()
    assert compute_digest("tag/1", 1) != compute_digest("tag/2", 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"content")
    os.utime(path, ns=(0, 0))
    return path


@pytest.fixture(autouse=True)
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat files as settled immediately, since tests cannot set a change time, except in tests of this rule."""
    if request.function not in (
        test_digest_of_a_recently_written_file_is_not_cached,
        test_file_with_old_mtime_but_recent_ctime_is_not_cached,
    ):
        monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)


def read(cache: DigestCache, path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the digest of a file, from the cache or by reading it."""
    return FileReader(cache, None, on_bytes).read(path.parent, [path]).digests[0][1]


def digest_of(content: bytes) -> str:
    return combine_segments((blake3(content).hexdigest(),), len(content))


def test_cached_digest_is_reused_by_a_new_cache(tmp_path: Path, source: Path) -> None:
    counted: list[int] = []
    assert DigestCache(tmp_path / "digests.json").lookup(source) is None
    expected = read(DigestCache(tmp_path / "digests.json"), source, counted.append)
    again = DigestCache(tmp_path / "digests.json")
    assert again.lookup(source) == read(again, source, counted.append) == expected
    assert expected == digest_of(b"content")
    assert counted == [7]


def test_changed_file_is_read_again(tmp_path: Path, source: Path) -> None:
    cache = DigestCache(tmp_path / "digests.json")
    read(cache, source)
    source.write_bytes(b"CONTENT")
    os.utime(source, ns=(0, 0))  # same size, inode and modification time: only the ctime differs
    assert cache.lookup(source) is None
    assert read(cache, source) == digest_of(b"CONTENT")


def test_digest_of_a_recently_written_file_is_not_cached(tmp_path: Path, source: Path) -> None:
    clock = [source.stat().st_ctime_ns + 1_900_000_000]
    cache = DigestCache(tmp_path / "digests.json", clock_ns=lambda: clock[0])
    read(cache, source)
    assert cache.lookup(source) is None
    clock[0] += 200_000_000
    read(cache, source)
    assert cache.lookup(source)


def test_two_caches_of_one_file_merge_their_digests(tmp_path: Path, source: Path) -> None:
    (second := tmp_path / "second").write_bytes(b"2")
    os.utime(second, ns=(0, 0))
    one, other = DigestCache(tmp_path / "digests.json"), DigestCache(tmp_path / "digests.json")
    read(one, source)
    read(other, second)
    both = DigestCache(tmp_path / "digests.json")
    assert both.lookup(source)
    assert both.lookup(second)


def test_full_cache_evicts_the_oldest_digest(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DigestCache, "MAX_FILES", 1)
    test_two = tmp_path / "second"
    test_two.write_bytes(b"2")
    os.utime(test_two, ns=(0, 0))
    cache = DigestCache(tmp_path / "digests.json")
    read(cache, source)
    read(cache, test_two)
    assert DigestCache(tmp_path / "digests.json").lookup(source) is None
    assert DigestCache(tmp_path / "digests.json").lookup(test_two)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"[" * 100_000, b'{"schema": "trtspec.digests/3"}', None])
def test_damaged_cache_is_treated_as_empty(tmp_path: Path, source: Path, damage: bytes | None) -> None:
    path = tmp_path / "digests.json"
    digest = read(DigestCache(path), source)
    if damage is None:  # change one hex digit of the cached digest
        damage = path.read_bytes().replace(digest.encode(), digest.replace(digest[0], "0123456789abcdef"[7]).encode())
    assert damage != path.read_bytes()
    path.write_bytes(damage)
    assert DigestCache(path).lookup(source) is None
    assert read(DigestCache(path), source) == digest
    assert DigestCache(path).lookup(source) == digest


def test_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, source: Path) -> None:
    def append(_: int) -> None:
        with source.open("ab") as file:
            file.write(b"x" * (16 if source.stat().st_size < 32 else 0))

    with pytest.raises(TrtspecError, match=r"the file changed while it was being read\nhint: wait until"):
        read(DigestCache(tmp_path / "digests.json"), source, append)


def test_unwritable_cache_still_returns_digests(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").touch()
    cache = DigestCache(tmp_path / "file" / "digests.json")
    assert read(cache, source) == digest_of(b"content")


@pytest.mark.parametrize(("mode", "owner", "remembered"), [(0o644, 0, True), (0o666, 0, False), (0o644, 12345, False)])
def test_digests_are_cached_only_for_files_that_others_cannot_write(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, remembered: bool
) -> None:
    source.chmod(mode)
    if owner:
        monkeypatch.setattr(os, "geteuid", lambda: owner)
        monkeypatch.setattr("trtspec.core.files._ROOT", 12346)
    cache = DigestCache(tmp_path / "cache.json", lambda: source.stat().st_ctime_ns + 3_000_000_000)
    digest = read(cache, source)
    assert cache.lookup(source) == digest, "this process read it"
    assert (DigestCache(tmp_path / "cache.json").lookup(source) is not None) == remembered


def test_file_with_old_mtime_but_recent_ctime_is_not_cached(tmp_path: Path, source: Path) -> None:
    os.utime(source, (1, 1))
    cache = DigestCache(tmp_path / "cache.json", lambda: source.stat().st_ctime_ns + 1_000_000_000)
    read(cache, source)
    assert cache.lookup(source) is None
