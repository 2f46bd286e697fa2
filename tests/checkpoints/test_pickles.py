# SPDX-License-Identifier: Apache-2.0
"""Weights in pickles: only pinned files are opened, code in them does not run, and the output has torch's tensors."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints.corpus import TOKENIZER
from trtspec.checkpoints import pickles, unpickler
from trtspec.checkpoints.pickles import unpickle, unpickled_dir
from trtspec.checkpoints.source import load_source
from trtspec.core.errors import CheckpointError
from trtspec.core.isolated import isolated_python
from trtspec.core.processes import wait_until


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not limit this process if a test unpickles in it."""
    monkeypatch.setattr(unpickler, "_confine", lambda nbytes: None)


@pytest.fixture
def root(workplace: Path) -> Path:
    """A checkpoint directory without weights."""
    root = workplace / "model"
    root.mkdir()
    (root / "config.json").write_text("{}")
    (root / "tokenizer.json").write_text(TOKENIZER)
    return root


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save(root: Path, saved: Any, name: str = "pytorch_model.bin") -> dict[str, str]:
    """Save with torch and return the pin."""
    torch.save(saved, root / name)
    return {name: digest(root / name)}


def opened(root: Path, pins: dict[str, str]) -> dict[str, torch.Tensor]:
    """Unpickle, and read the result with the official library."""
    unpickle(root, pins, lambda _: None)
    out = unpickled_dir(root, pins)
    return {name: tensor for file in load_source(out).weight_files for name, tensor in load_file(file).items()}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open pickles in this process, which has already imported torch, if the process does not matter for the test."""

    def run(pickle: Path, descriptor: int, out: Path) -> None:
        try:
            unpickler.main(f"/dev/fd/{descriptor}", str(out))
        except SystemExit as ended:
            raise CheckpointError(str(ended.code), where=str(pickle)) from None

    monkeypatch.setattr(pickles, "_run_unpickler", run)


def refused(root: Path, pins: dict[str, str], message: str) -> CheckpointError:
    """Assert that an error is raised and no files remain."""
    with pytest.raises(CheckpointError) as caught:
        unpickle(root, pins, lambda _: None)
    assert message in str(caught.value)
    assert [path for path in unpickled_dir(root, pins).parent.iterdir() if path.suffix != ".lock"] == []
    return caught.value


class TestWhatComesOut:
    @pytest.mark.slow
    def test_tensors_equal_those_saved_by_torch(self, root: Path) -> None:
        torch.manual_seed(0)
        saved = {dtype: torch.randn(3, 5).mul(50).to(getattr(torch, dtype)) for dtype in unpickler.DTYPES}
        saved |= {
            "scalar": torch.tensor(3.5),
            "none": torch.empty(0, 4),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        }
        found = opened(root, save(root, saved))
        assert found.keys() == saved.keys()
        for name, tensor in saved.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert (
                torch.equal(found[name].view(torch.uint8), tensor.detach().view(torch.uint8)) if tensor.dim() else True
            )
        assert found["scalar"].item() == 3.5

    @pytest.mark.usefixtures("in_process")
    def test_shared_and_strided_tensors_are_copied_separately(self, root: Path) -> None:
        base = torch.arange(12.0).reshape(3, 4)
        saved = OrderedDict(embedding=base, head=base, transposed=base.T[1:])
        found = opened(root, save(root, saved))
        for name, tensor in saved.items():
            assert torch.equal(found[name], tensor)

    @pytest.mark.usefixtures("in_process")
    def test_shards_get_an_index_named_as_by_transformers(self, root: Path) -> None:
        first = save(root, {"a": torch.ones(2)}, "pytorch_model-00001-of-00002.bin")
        second = save(root, {"b": torch.zeros(3)}, "pytorch_model-00002-of-00002.bin")
        placed = dict(zip("ab", [*first, *second], strict=True))
        (root / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
        found = opened(root, {**first, **second})
        assert torch.equal(found["b"], torch.zeros(3))
        index = json.loads((unpickled_dir(root, {**first, **second}) / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }

    @pytest.mark.usefixtures("in_process")
    def test_output_includes_config_and_tokenizer(self, root: Path) -> None:
        pins = save(root, {"a": torch.ones(2)})
        unpickle(root, pins, lambda _: None)
        names = sorted(path.name for path in unpickled_dir(root, pins).iterdir())
        assert names == ["config.json", "model.safetensors", "tokenizer.json"]

    @pytest.mark.slow
    def test_output_bytes_are_deterministic(self, root: Path) -> None:
        pins = save(root, {"b": torch.ones(2), "a": torch.zeros(3)})
        opened(root, pins)
        before = digest(unpickled_dir(root, pins) / "model.safetensors")
        (root / "tokenizer.json").write_text(
            '{"model": {"type": "BPE"}}'
        )  # a different checkpoint with the same weights
        opened(root, pins)
        assert digest(unpickled_dir(root, pins) / "model.safetensors") == before
        assert len(list(unpickled_dir(root, pins).parent.glob("*/model.safetensors"))) == 2

    @pytest.mark.usefixtures("in_process")
    def test_output_is_converted_once(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pins = save(root, {"a": torch.ones(2)})
        opened(root, pins)
        (root / "pytorch_model.bin").unlink()
        opened(root, pins)

    @pytest.mark.usefixtures("in_process")
    def test_progress_is_reported_in_bytes_read(self, root: Path) -> None:
        pins = save(root, {"a": torch.ones(1 << 20)})
        sizes: list[int] = []
        unpickle(root, pins, sizes.append)
        assert sum(sizes) == (root / "pytorch_model.bin").stat().st_size


class TestThePin:
    def test_pin_with_a_different_digest_is_rejected_unopened(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(root, {"a": torch.ones(2)})
        monkeypatch.setattr(pickles, "_run_unpickler", lambda *_: pytest.fail("it was opened"))
        message = "pytorch_model.bin: does not have the SHA-256 pinned in the recipe"
        error = refused(root, {"pytorch_model.bin": "0" * 64}, message)
        assert error.hint is not None
        assert digest(root / "pytorch_model.bin") in error.hint

    def test_pin_of_a_missing_file_is_rejected(self, root: Path) -> None:
        refused(root, {"other.bin": "0" * 64}, "other.bin: pinned by sha256 but missing")

    @pytest.mark.usefixtures("in_process")
    def test_pin_applies_to_the_opened_file_even_if_it_is_replaced(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pins = save(root, {"a": torch.ones(2)})
        run = pickles._run_unpickler

        def swap(path: Path, *rest: Any) -> None:
            save(root, {"evil": torch.ones(2)}, "evil.bin")
            (root / "evil.bin").replace(path)
            run(path, *rest)

        monkeypatch.setattr(pickles, "_run_unpickler", swap)
        assert list(opened(root, pins)) == ["a"]

    def test_index_naming_an_unpinned_file_is_rejected(self, root: Path) -> None:
        pins = save(root, {"a": torch.ones(2)})
        placed = {"a": "pytorch_model.bin", "b": "more.bin"}
        (root / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
        error = refused(root, pins, "pytorch_model.bin.index.json: names more.bin, which sha256 does not pin")
        assert error.hint == f"pin every file it names; print its digest with: sha256sum {root}/more.bin"


class Gadget:
    """An object whose pickle runs a program."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.victim}",)


@pytest.mark.slow
class TestCodeInAPickle:
    def test_gadget_runs_code_in_an_ordinary_unpickler(self, tmp_path: Path) -> None:
        pickle.loads(pickle.dumps(Gadget(tmp_path / "ran")))
        assert (tmp_path / "ran").exists()

    def test_code_in_place_of_a_tensor_is_not_run(self, root: Path, tmp_path: Path) -> None:
        pins = save(root, {"a": torch.ones(2), "b": Gadget(tmp_path / "ran")})
        refused(root, pins, "pytorch_model.bin: not opened: it references posix.system, which tensors do not need")
        assert not (tmp_path / "ran").exists()

    def test_code_named_only_on_the_stack_is_not_run(self, root: Path, tmp_path: Path) -> None:
        """The name is assembled on the stack, so only running the pickle reveals it."""
        program = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c%c%b\x85R." % (
            (command := f"touch {tmp_path}/ran".encode()) and len(command),
            command,
        )
        torch.save({"a": torch.ones(2)}, root / "honest.bin")
        with zipfile.ZipFile(root / "honest.bin") as honest, zipfile.ZipFile(root / "x.bin", "w") as evil:
            for name in honest.namelist():
                evil.writestr(name, program if name.endswith("data.pkl") else honest.read(name))
        pins = {"x.bin": digest(root / "x.bin")}
        refused(root, pins, "x.bin: cannot be opened: Unsupported operand")
        assert not (tmp_path / "ran").exists()

    def test_code_missed_by_the_scan_is_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save(tmp_path, {"b": Gadget(tmp_path / "ran")})
        monkeypatch.setattr(torch.serialization, "get_unsafe_globals_in_checkpoint", lambda _: [])
        with pytest.raises(SystemExit, match="cannot be opened: Weights only load failed"):
            unpickler.main(str(tmp_path / "pytorch_model.bin"), str(tmp_path / "out"))
        assert not (tmp_path / "ran").exists()

    def test_code_in_a_plain_pickle_is_not_run(self, root: Path, tmp_path: Path) -> None:
        (root / "x.pt").write_bytes(pickle.dumps(Gadget(tmp_path / "ran")))
        refused(root, {"x.pt": digest(root / "x.pt")}, "x.pt: not written by torch.save (torch 1.6 or later)")
        assert not (tmp_path / "ran").exists()


NOT_TENSORS = [
    ([torch.ones(2)], "contains a list, not a mapping from names to tensors"),
    ({}, "contains a dict, not a mapping from names to tensors"),
    ({"state_dict": {"a": torch.ones(2)}, "epoch": 3}, "contains a mapping at 'state_dict'; save that mapping"),
    ({"a": torch.ones(2), "epoch": 3}, "contains a int at 'epoch', not a tensor"),
    ({3: torch.ones(2)}, "contains the key 3, which is not a tensor name"),
    ({"a": torch.ones(2, dtype=torch.complex64)}, "tensor 'a' has the dtype complex64"),
    ({"a": torch.ones(2).to_sparse()}, "tensor 'a' is sparse, quantized or without data"),
    ({"a": torch.ones(2, device="meta")}, "tensor 'a' is sparse, quantized or without data"),
    ({"a": torch.ones(1).expand(1 << 40)}, "its tensors need 4,398,046,511,104 bytes, but the file has "),
]


@pytest.mark.parametrize(("saved", "message"), NOT_TENSORS, ids=[message[:40] for _, message in NOT_TENSORS])
def test_file_without_a_state_dict_is_rejected(tmp_path: Path, saved: Any, message: str) -> None:
    """Run in this process: other tests show that the child's last line becomes the error."""
    save(tmp_path, saved)
    with pytest.raises(SystemExit) as ended:
        unpickler.main(str(tmp_path / "pytorch_model.bin"), str(tmp_path / "out"))
    assert message in str(ended.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("in_process")
def test_tensor_name_with_a_path_separator_is_rejected(root: Path) -> None:
    refused(root, save(root, {"a/b": torch.ones(2)}), "tensor name 'a/b' has a path separator")


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_torch_file_without_a_pickle_is_rejected(root: Path) -> None:
    with zipfile.ZipFile(root / "x.bin", "w") as empty:
        for name in ("data.pkl", "version", "byteorder"):
            empty.writestr(f"x/{name}", b"")
    refused(root, {"x.bin": digest(root / "x.bin")}, "x.bin: cannot be opened: ")


@pytest.mark.usefixtures("in_process")
def test_truncated_file_is_rejected(root: Path) -> None:
    save(root, {"a": torch.ones(1000)})
    path = root / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-200])
    refused(root, {path.name: digest(path)}, "pytorch_model.bin: not written by torch.save")


@pytest.mark.usefixtures("in_process")
def test_tensor_in_two_files_is_rejected(root: Path) -> None:
    pins = save(root, {"a": torch.ones(2)}, "x.bin") | save(root, {"a": torch.ones(2)}, "y.bin")
    refused(root, pins, "y.bin: tensor 'a' is also in x.bin")


@pytest.mark.usefixtures("in_process")
def test_index_that_contradicts_the_files_is_rejected(root: Path) -> None:
    pins = save(root, {"a": torch.ones(2)}, "x.bin") | save(root, {"b": torch.ones(2)}, "y.bin")
    (root / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "y.bin", "b": "y.bin"}}))
    refused(root, pins, "pytorch_model.bin.index.json: maps 'a' to y.bin, which does not contain it")


class TestTheProcess:
    """The child process is replaced by a program that reports its state, or acts as malicious code would."""

    @pytest.fixture
    def child(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        popen = subprocess.Popen

        def become(program: str) -> None:
            def start(argv: list[str], **options: Any) -> Any:
                assert argv[:-2] == isolated_python("trtspec.checkpoints.unpickler")
                return popen([sys.executable, "-I", "-c", program, *argv[-2:]], **options)

            monkeypatch.setattr(pickles.subprocess, "Popen", start)

        return become

    def test_child_has_empty_environment_no_input_and_a_separate_process_group(
        self, root: Path, child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        state = "set(os.environ) - {'LC_CTYPE'}, sys.stdin.read(), os.getpgrp() == os.getpid()"  # Python sets LC_CTYPE
        child(f"import os, sys; sys.exit(repr([{state}]))")
        refused(root, save(root, {"a": torch.ones(2)}), "[set(), '', True]")

    def test_child_output_that_is_not_safetensors_is_rejected(self, root: Path, child: Callable[[str], None]) -> None:
        child("import sys; open(sys.argv[2], 'wb').write(bytes(16))")
        refused(root, save(root, {"a": torch.ones(2)}), "model.safetensors: not a safetensors file")

    def test_killed_child_is_reported(self, root: Path, child: Callable[[str], None]) -> None:
        child("import os; os.kill(os.getpid(), 9)")
        refused(root, save(root, {"a": torch.ones(2)}), "the process that opened it exited with -9")

    @pytest.mark.slow
    def test_child_is_ended_after_its_timeout(
        self, root: Path, child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(pickles, "LEAST_TIME_S", 1)
        child(SLEEPER.format(pids=tmp_path / "pids"))
        refused(root, save(root, {"a": torch.ones(2)}), "was not converted within 1 s")
        ended(tmp_path / "pids")

    @pytest.mark.slow
    def test_child_is_ended_by_an_interrupt(self, root: Path, child: Callable[[str], None], tmp_path: Path) -> None:
        pins = save(root, {"a": torch.ones(2)})
        child(SLEEPER.format(pids=tmp_path / "pids"))

        def interrupt() -> None:
            wait_until((tmp_path / "pids").exists, 20)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            unpickle(root, pins, lambda _: None)
        ended(tmp_path / "pids")
        assert not unpickled_dir(root, pins).exists()


SLEEPER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open("{pids}.part", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename("{pids}.part", "{pids}")
time.sleep(60)
"""


def ended(pids: Path) -> None:
    """Assert that the process and its child have ended, or are zombies."""

    def is_gone(pid: str) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    for pid in pids.read_text().split():
        assert wait_until(lambda pid=pid: is_gone(pid), 30)  # type: ignore[misc]


@pytest.mark.usefixtures("in_process")
def test_leftovers_of_a_killed_build_are_removed(root: Path) -> None:
    pins = save(root, {"a": torch.ones(2)})
    target = unpickled_dir(root, pins)
    left = target.with_name(f".{target.name}.tmp")
    left.mkdir(parents=True)
    (left / "half").touch()
    assert list(opened(root, pins)) == ["a"]
    assert not left.exists()


@pytest.mark.slow
def test_concurrent_processes_convert_once(root: Path) -> None:
    pins = save(root, {"a": torch.ones(2)})
    code = "import json, sys; from pathlib import Path; from trtspec.checkpoints.pickles import unpickle\n" + (
        "sizes = []; unpickle(Path(sys.argv[1]), json.loads(sys.argv[2]), sizes.append); print(len(sizes))"
    )
    argv = [sys.executable, "-c", code, str(root), json.dumps(pins)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=60)[0] for process in both) == ["0\n", "1\n"]


def test_unwritable_cache_is_an_error(root: Path, workplace: Path) -> None:
    pins = save(root, {"a": torch.ones(2)})
    (workplace / "cache").touch()
    with pytest.raises(CheckpointError, match="cannot be created: Not a directory\nhint: free space or make"):
        unpickle(root, pins, lambda _: None)


def test_unpickled_dir_is_found_quickly_and_depends_on_the_pins(root: Path) -> None:
    pins = save(root, {"a": torch.ones(8 << 20)})
    started = time.process_time()
    assert unpickled_dir(root, pins) == unpickled_dir(root, pins)
    assert time.process_time() - started < 0.05
    assert unpickled_dir(root, pins) != unpickled_dir(root, {"pytorch_model.bin": "0" * 64})


def rewritten(root: Path, change: Callable[[str, bytes], bytes]) -> dict[str, str]:
    """Save a pickle and change the content of its records, with matching checksums."""
    torch.save({"a": torch.arange(64.0), "b": torch.ones(3)}, root / "whole")
    path = root / "pytorch_model.bin"
    with zipfile.ZipFile(root / "whole") as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for record in old.infolist():
            new.writestr(record.filename, change(record.filename, old.read(record)))
    (root / "whole").unlink()
    return {path.name: digest(path)}


@pytest.mark.usefixtures("in_process")
class TestDamagedRecords:
    def test_short_storage_is_rejected(self, root: Path) -> None:
        pins = rewritten(root, lambda name, data: data[:4] if name.endswith("data/0") else data)
        refused(root, pins, "its record data/0 has 4 bytes, but its tensors need 256")

    def test_missing_storage_is_rejected(self, root: Path) -> None:
        pins = rewritten(root, lambda name, data: b"" if name.endswith("data/0") else data)
        refused(root, pins, "its record data/0 has 0 bytes")

    def test_flipped_bit_is_rejected(self, root: Path) -> None:
        pins = save(root, {"a": torch.arange(6400.0)})
        path = root / "pytorch_model.bin"
        raw = bytearray(path.read_bytes())
        raw[raw.index(torch.arange(6400.0).numpy().tobytes()[100:140]) + 5] ^= 1
        path.write_bytes(bytes(raw))
        refused(root, {path.name: digest(path)}, "is damaged: the checksum differs")
        assert pins
