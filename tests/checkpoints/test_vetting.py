# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that would crash a process or exhaust its memory are rejected before they are loaded."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.tokenizer_kinds import BYTES, beginning, byte_level, pieces, write
from trtspec.checkpoints import tokenizer as vetting_module
from trtspec.checkpoints.tokenizer import Tokenizer, trial_ahead, vet
from trtspec.core.errors import CheckpointError, TrtspecError

Change = Callable[[dict[str, Any]], Any]


def good(root: Path) -> Path:
    return write(root, beginning(byte_level(), "<s>"), {"tokenizer_class": "PreTrainedTokenizerFast", **BYTES})


def change(root: Path, edit: Change) -> None:
    path = root / "tokenizer.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def unknown_token_first(document: dict[str, Any]) -> None:
    document["post_processor"]["single"][0]["SpecialToken"]["id"] = "<nosuch>"


ATTACKS: dict[str, Change] = {
    "abort: a prefix of words": lambda d: d["model"].update(continuing_subword_prefix="5"),
    "memory: one id of 2^31-1": lambda d: d["model"]["vocab"].update(far=2**31 - 1),
    "panic: no characters map": lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
    "panic: unknown token of a template": unknown_token_first,
    "error: no model": lambda d: d.pop("model"),
    "error: merges of unknown tokens": lambda d: d["model"]["merges"].append(["qq", "zz"]),
    "error: bad pattern": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior":
                                             "Isolated", "invert": False}),
    "time: a pattern without end": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$|b"},
                                             "behavior": "Isolated", "invert": False}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_harmful_tokenizer_is_contained_within_time_and_memory_limits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    change(good(tmp_path / "t"), ATTACKS[name])
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name.startswith("time"):  # the library gives up, or the child is killed
        with suppress(TrtspecError):
            Tokenizer(tmp_path / "t")
    else:
        with pytest.raises(CheckpointError) as refused:
            Tokenizer(tmp_path / "t")
        assert "tokenizer.json" in str(refused.value.where)
    assert time.monotonic() - began < 150
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.slow
def test_tokenizer_is_vetted_once_until_its_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    root, runs = good(tmp_path / "t"), []
    real = vetting_module.run_in_child
    monkeypatch.setattr(
        vetting_module, "run_in_child", lambda *args, **options: (runs.append(1), real(*args, **options))[1]
    )
    vet(root)
    vet(root)
    assert len(runs) == 1
    (root / "tokenizer_config.json").write_text("{}")
    vet(root)
    assert len(runs) == 2
    change(root, ATTACKS["panic: unknown token of a template"])
    for _ in range(2):
        with pytest.raises(CheckpointError):
            vet(root)
    assert len(runs) == 4


@pytest.mark.slow
def test_trial_that_was_started_ahead_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vetting_module, "run_in_child", lambda *args, **options: pytest.fail("a second trial"))
    root, children = good(tmp_path / "t"), Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text()
    with trial_ahead(str(root), None):
        vet(root)
        vet(root)
    change(root, ATTACKS["panic: unknown token of a template"])
    with trial_ahead(str(root), None), pytest.raises(CheckpointError, match="the tokenizer fails on this text"):
        vet(root)
    with trial_ahead(str(root), None), trial_ahead(str(tmp_path / "missing"), None):
        pass  # the child that nobody waited for is killed
    assert children.read_text() == before


def test_library_panic_after_vetting_is_raised_as_a_trtspec_error(tmp_path: Path) -> None:
    """A file may change after its trial."""
    change(good(tmp_path), ATTACKS["panic: unknown token of a template"])
    with pytest.raises(TrtspecError):
        Tokenizer(tmp_path, vetted=True).encode("a")
    change(good(tmp_path), ATTACKS["panic: no characters map"])
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        Tokenizer(tmp_path, vetted=True)


@pytest.mark.slow
def test_randomly_damaged_tokenizer_is_loaded_or_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is loaded, or rejected with a CheckpointError."""
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    draws, texts = random.Random(1), []
    for tokenizer in (beginning(byte_level(), "<s>"), beginning(pieces(), "<s>")):
        texts.append(json.loads(tokenizer.to_str()))
    config = {"tokenizer_class": "LlamaTokenizerFast"}
    values: list[Any] = [None, -1, 2**40, "", "5", [], {}, True, 1.5, "\ud800"]
    for number in range(int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "16"))):
        root = write(tmp_path / "t", pieces(), config)
        document = json.loads(json.dumps(texts[number % 2]))
        for _ in range(draws.choice((1, 2, 4))):
            at: Any = document
            while True:
                keys = list(at) if isinstance(at, dict) else list(range(len(at)))
                key = draws.choice(keys)
                if not isinstance(at[key], (dict, list)) or not at[key] or draws.random() < 0.15:
                    break
                at = at[key]
            at[key] = draws.choice(values)
        (root / "tokenizer.json").write_text(json.dumps(document))
        with monkeypatch.context() as patched:
            patched.setattr(
                vetting_module,
                "TRIAL_LIMITS",
                vetting_module.SandboxLimits(memory_bytes=2 << 30, cpu_s=10, wall_s=60, output_bytes=4096),
            )
            with suppress(CheckpointError):
                Tokenizer(root)
