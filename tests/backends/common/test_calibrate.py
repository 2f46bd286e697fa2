# SPDX-License-Identifier: Apache-2.0
"""The texts that calibrate a checkpoint, and the use of the measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import PAIR_VOCAB, make_llama, make_tokenizer
from trtspec.backends.common.convert import Calibrate, calibrate_checkpoint
from trtspec.checkpoints.conversion import ACTIVATIONS, load_activations
from trtspec.checkpoints.source import load_source
from trtspec.core.errors import CheckpointError
from trtspec.core.paths import calibration_prompts
from trtspec.engine.prompts.load import load_prompts
from trtspec.engine.prompts.prompt import Prompt
from trtspec.store.digest import DigestCache
from trtspec.store.files import FileReader, with_digests
from trtspec.store.step import Inputs
from trtspec.store.store import Store

TEXTS = ("the rest", "in here, where the north wind is", "{")
LONG = 500


class Counter:
    def __init__(self) -> None:
        self.done = 0

    def advance(self, n_bytes: int) -> None:
        self.done += n_bytes


def make_source(root: Path, vocab_size: int = PAIR_VOCAB) -> Path:
    make_llama(root, vocab_size=vocab_size)
    return make_tokenizer(root)


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text, "", "") for text in texts]


def make_step(root: Path, samples: int = 2, max_len: int = 10) -> Calibrate:
    source = load_source(make_source(root / "source"))
    (root / "prompts.jsonl").write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in TEXTS))
    reader = FileReader(DigestCache(root / "digests.json"))
    return Calibrate(
        "target",
        reader.read(source.root, [source.root / "config.json", *source.weight_files]),
        tokenizer=reader.read(source.root, source.tokenizer_files),
        prompts=reader.read(root, [root / "prompts.jsonl"]),
        samples=samples,
        max_len=max_len,
        nbytes=source.nbytes,
    )


def test_calibration_uses_the_first_prompts_truncated_to_max_len(tmp_path: Path) -> None:
    step, progress, out = make_step(tmp_path), Counter(), tmp_path / "out"
    out.mkdir()
    step.run(out, Inputs({}), progress)
    expected = calibrate_checkpoint(tmp_path / "source", prompts(*TEXTS[:2]), 10)
    assert load_activations(out / ACTIVATIONS) == expected
    assert expected != calibrate_checkpoint(tmp_path / "source", prompts(*TEXTS), 10)
    assert expected != calibrate_checkpoint(tmp_path / "source", prompts(*TEXTS[:2]), 11)
    assert progress.done == step.total_bytes
    assert [path.name for path in out.iterdir()] == [ACTIVATIONS]


def test_calibration_finds_the_digests_of_unread_sources(tmp_path: Path) -> None:
    read, inputs, out = make_step(tmp_path), Inputs({}), tmp_path / "out"
    reader = FileReader(DigestCache(tmp_path / "none.json"), 0)
    unread = replace(read, source=reader.read(read.source.root, read.source.paths))
    assert unread.key != read.key
    out.mkdir()
    unread.run(out, inputs, Counter())
    assert with_digests(unread, inputs.found_digests).key == read.key
    assert load_activations(out / ACTIVATIONS) == calibrate_checkpoint(tmp_path / "source", prompts(*TEXTS[:2]), 10)


def test_calibration_key_depends_on_samples_and_length_not_location(tmp_path: Path) -> None:
    step = make_step(tmp_path)
    (tmp_path / "moved").mkdir()
    assert make_step(tmp_path / "moved").key == step.key
    assert make_step(tmp_path, samples=3).key != step.key
    assert make_step(tmp_path, max_len=11).key != step.key


def test_tokenizer_with_more_ids_than_the_model_is_rejected(tmp_path: Path) -> None:
    source = make_source(tmp_path, vocab_size=32)
    with pytest.raises(CheckpointError, match=r"the tokenizer produces the id \d+, but the model has 32") as raised:
        calibrate_checkpoint(source, prompts("the rest"), 10)
    assert raised.value.where == str(source)
    assert raised.value.hint == "use tokenizer and weights of the same model"


def test_prompts_without_tokens_are_skipped(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    dropping = json.loads((source / "tokenizer.json").read_text())
    dropping["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    (source / "tokenizer.json").write_text(json.dumps(dropping))
    assert calibrate_checkpoint(source, prompts("  ", "the"), 10) == calibrate_checkpoint(source, prompts("the"), 10)
    with pytest.raises(CheckpointError, match="the tokenizer produces no tokens for the prompts"):
        calibrate_checkpoint(source, prompts("  "), 10)


def test_calibration_prompts_are_many_varied_and_small() -> None:
    """As many as a recipe uses by default, some of them longer than the limit of 512 tokens."""
    found = load_prompts(calibration_prompts())
    assert len({prompt.text for prompt in found}) == len(found) >= 128
    assert calibration_prompts().stat().st_size < 150_000
    kinds = {"prose", "code", "json", "log", "maths", "table", "chat", "language"}
    assert {prompt.kind for prompt in found} == kinds
    assert {prompt.kind for prompt in found[:32]} == kinds  # also with a small `samples`
    assert sum(len(prompt.text.split()) > LONG for prompt in found) >= 4


KILLED = """
import os, signal, sys
from pathlib import Path
from typing import Any
from trtspec.engine.prompts.prompt import Prompt
from trtspec.backends.common.convert import calibrate_checkpoint
from trtspec.engine import calibration
calibration.SAVE_EVERY_S = 0
passed = calibration._Calibration.pass_layer
def dying(self, number, *rest):
    if number == 1:
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
    passed(self, number, *rest)
calibration._Calibration.pass_layer = dying
texts = [Prompt(text, "", "") for text in sys.argv[4:]]
calibrate_checkpoint(Path(sys.argv[1]), texts, 10, notes=Path(sys.argv[2]))
"""


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the layers in the order of their processing."""
    from trtspec.engine import calibration

    monkeypatch.setattr(calibration, "SAVE_EVERY_S", 0)
    seen, passed = [], calibration._Calibration.pass_layer

    def counted(self: calibration._Calibration, number: int, *rest: Any) -> None:
        seen.append(number)
        passed(self, number, *rest)

    monkeypatch.setattr(calibration._Calibration, "pass_layer", counted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGKILL", "SIGINT"])
def test_interrupted_calibration_resumes_at_the_next_layer(number: str, tmp_path: Path, layers: list[int]) -> None:
    root, notes, progress = make_source(tmp_path / "source"), tmp_path / "states", Counter()
    argv = [sys.executable, "-c", KILLED, str(root), str(notes), number, *TEXTS]
    assert subprocess.run(argv, check=False, capture_output=True, timeout=60).returncode != 0
    found = calibrate_checkpoint(root, prompts(*TEXTS), 10, progress.advance, notes)
    assert layers == [1]
    assert found == calibrate_checkpoint(root, prompts(*TEXTS), 10)
    assert progress.done == load_source(root).nbytes


@pytest.mark.parametrize("change", ["source", "texts", "damage"])
def test_outdated_or_damaged_calibration_state_is_discarded(change: str, tmp_path: Path, layers: list[int]) -> None:
    root, notes = make_source(tmp_path / "source"), tmp_path / "states"
    calibrate_checkpoint(root, prompts(*TEXTS), 10, notes=notes)
    texts = TEXTS[:1] if change == "texts" else TEXTS
    if change == "source":
        os.utime(root / "model.safetensors", ns=(1, 1))
    if change == "damage":
        notes.write_bytes(notes.read_bytes()[:-100])
    layers.clear()
    found = calibrate_checkpoint(root, prompts(*texts), 10, notes=notes)
    assert layers == [0, 1]
    assert found == calibrate_checkpoint(root, prompts(*texts), 10)


def test_calibration_succeeds_without_writable_state(tmp_path: Path, layers: list[int]) -> None:
    root = make_source(tmp_path / "source")
    found = calibrate_checkpoint(root, prompts(*TEXTS), 10, notes=tmp_path / "nosuch" / "states")
    assert found == calibrate_checkpoint(root, prompts(*TEXTS), 10)


def test_store_retains_calibration_state_until_the_step_is_done(
    tmp_path: Path, layers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trtspec.engine import calibration

    step, store, finish = make_step(tmp_path), Store(tmp_path / "store"), calibration._Calibration.finish

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibration._Calibration, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.obtain(step)
    monkeypatch.setattr(calibration._Calibration, "finish", finish)
    entry = store.obtain(step).entry
    assert layers == [0, 1]
    assert [file.path for file in entry.files] == [ACTIVATIONS]
    assert not list((tmp_path / "store" / "partial").iterdir())
