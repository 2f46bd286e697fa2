# SPDX-License-Identifier: Apache-2.0
"""Each kind of draft from each dialect to each other and back: bit-identical tensors, keys with their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.methods.draft_formats.medusa_nets import HEADS
from tests.methods.draft_formats.nets import NETS, config_of, contents, make_target
from tests.methods.eagle3_heads import random_head, save_head
from trtspec.core.errors import TrtspecError
from trtspec.methods.draft_formats.base import schemas_for
from trtspec.methods.draft_formats.convert import convert_draft

DRAFTS = NETS | HEADS
WAYS = [
    (kind, start, other)
    for kind, start in DRAFTS
    for other in schemas_for(kind)
    if other != start and (kind, other) != ("eagle3", "deepspec")  # which drafts the whole vocabulary
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target") / "hf")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "start", "other"), WAYS, ids=[" ".join(way) for way in WAYS])
def test_draft_round_trips_between_dialects(kind: str, start: str, other: str, target: Path, tmp_path: Path) -> None:
    source, where = DRAFTS[kind, start](tmp_path / "source"), str(target)
    # the first conversion makes defaults explicit and adds required tensors
    first = convert_draft(source, start, tmp_path / "first", where)
    assert (first.draft.kind, first.draft.dialect) == (kind, start)
    there = convert_draft(tmp_path / "first", other, tmp_path / "there", where)
    back = convert_draft(tmp_path / "there", start, tmp_path / "back", where)
    assert (there.draft.dialect, back.draft.dialect) == (start, other)
    assert contents(tmp_path / "back") == contents(tmp_path / "first")
    assert kept(contents(source)).items() <= contents(tmp_path / "first").items()
    ours, theirs = config_of(tmp_path / "first"), config_of(tmp_path / "back")
    assert {key: theirs[key] for key in ours} == ours
    assert set(theirs) - set(ours) <= {"trtspec_carried"}
    assert_same(config_of(source), ours)


def kept(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tensors.items() if not name.startswith("verifier_")}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that each key of the source was written, except its class and keys that only trainers read."""
    for key, value in before.items():
        if isinstance(value, dict) and key != "speculators_config":
            assert_same(value, after[key])
        elif key not in ("architectures", "parallel_drafting", "norm_before_residual") or key in after:
            assert key == "architectures" or after[key] == value, key


def test_feature_unsupported_by_a_dialect_is_rejected_by_name(target: Path, tmp_path: Path) -> None:
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"norm_before_residual": True}, "specforge", "has no key for norm_before_residual = true"),
        ({"norm_output": True}, "modelopt", "has no key for norm_output = true"),
        ({}, "deepspec", r"has no layers\.0\.self_attn\.q_norm\.weight"),
    )
    for change, to, words in cases:
        source = save_head(random_head((1, 2, 3), **change), tmp_path / to, "speculators")
        with pytest.raises(TrtspecError, match=words):
            convert_draft(source, to, tmp_path / "out", str(target))
        assert not (tmp_path / "out").exists()
