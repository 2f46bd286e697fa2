# SPDX-License-Identifier: Apache-2.0
"""Convert pickled weights (*.bin, *.pt) that the recipe pins to a safetensors checkpoint.

A pickle is a program and is treated as untrusted. A file is opened only if its SHA-256 is the one in the recipe, by a
child process (unpickler.py) with an empty environment and a time limit. The output of the child process is untrusted
too, so its header is validated.

    CACHE/unpickled/KEY/         config, tokenizer and weights; exists only if complete
    CACHE/unpickled/KEY.lock     held during the conversion
    CACHE/unpickled/.KEY.tmp/    during the conversion; the next build deletes the leftovers of a killed one
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shlex import join, quote

from trtspec.checkpoints.safe_json import inside
from trtspec.checkpoints.safetensors import DAMAGED, read_header
from trtspec.checkpoints.source import (
    INDEX,
    MAX_CONFIG_BYTES,
    PICKLE_INDEX,
    TOKENIZER_FILES,
    read_json,
    read_weight_map,
)
from trtspec.core.errors import CheckpointError, os_error_remedy
from trtspec.core.files import file_lock, fsync_path, sync_directories
from trtspec.core.hashing import file_sha256
from trtspec.core.isolated import isolated_python
from trtspec.core.paths import cache_dir
from trtspec.core.processes import die_with_parent

log = logging.getLogger(__name__)

FORMAT = "trtspec.unpickled/1"
DESCRIPTIONS = ("config.json", *TOKENIZER_FILES)
# Allow for slow disks (10 MB/s) and a slow import of torch.
LEAST_TIME_S, LEAST_BYTES_PER_S = 120, 10_000_000

OnBytes = Callable[[int], None]


def unpickled_dir(root: Path, pins: Mapping[str, str]) -> Path:
    """Return the directory of the checkpoint converted from the pickles in `root`; it may not exist yet.

    `pins` maps the names of the pickles to their SHA-256. Only config and tokenizer are hashed here.
    """
    descriptions = {name: file_sha256(root / name) for name in DESCRIPTIONS if (root / name).is_file()}
    key = json.dumps([FORMAT, dict(pins), descriptions], sort_keys=True)
    return cache_dir() / "unpickled" / hashlib.sha256(key.encode()).hexdigest()[:32]


def unpickle(root: Path, pins: Mapping[str, str], on_bytes: OnBytes) -> None:
    """Convert the pickles in `root` to `unpickled_dir(root, pins)`, unless that directory exists.

    `on_bytes` receives the size of each piece read. Raises CheckpointError if a pickle is missing, has another SHA-256,
    or contains anything but tensors; no files remain in that case.
    """
    target = unpickled_dir(root, pins)
    with _explain_os_errors(target), _locked(target):
        if target.is_dir():
            return
        read_json(inside(root, "config.json"), MAX_CONFIG_BYTES)
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            _fill(temporary, root, pins, on_bytes)
            sync_directories(temporary)
            os.rename(temporary, target)
            fsync_path(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _fill(out: Path, root: Path, pins: Mapping[str, str], on_bytes: OnBytes) -> None:
    for path in (inside(root, name) for name in DESCRIPTIONS):
        if path.is_file():
            shutil.copyfile(path, out / path.name)
            fsync_path(out / path.name)
    indexed = _read_index(inside(root, PICKLE_INDEX), pins)
    shards = _shard_names(sorted(pins))
    found: dict[str, str] = {}
    for name, shard in shards.items():
        _convert(root / name, pins[name], out / shard, on_bytes)
        for tensor in read_header(out / shard):
            if tensor in found:
                raise CheckpointError(
                    f"tensor {tensor!r} is also in {found[tensor]}", where=str(root / name), hint=DAMAGED
                )
            found[tensor] = name
    for tensor, name in indexed.items():
        if found.get(tensor) != name:
            raise CheckpointError(
                f"maps {tensor!r} to {name}, which does not contain it", where=str(root / PICKLE_INDEX), hint=DAMAGED
            )
    if len(shards) > 1:
        weight_map = {tensor: shards[name] for tensor, name in found.items()}
        (out / INDEX).write_text(json.dumps({"weight_map": weight_map}, indent=1))
        fsync_path(out / INDEX)


def _shard_names(pickles: Sequence[str]) -> dict[str, str]:
    """Return the safetensors file name for each pickle, as transformers expects it."""
    count = len(pickles)
    if count == 1:
        return {pickles[0]: "model.safetensors"}
    return {name: f"model-{number:05}-of-{count:05}.safetensors" for number, name in enumerate(pickles, 1)}


def _read_index(index: Path, pins: Mapping[str, str]) -> dict[str, str]:
    """Return the index's map from tensors to pickles, {} without one; raise CheckpointError if one is not pinned."""
    placed = read_weight_map(index) if index.is_file() else {}
    for name in sorted(set(placed.values()) - set(pins)):
        hint = f"pin every file it names; print its digest with: sha256sum {quote(str(index.with_name(name)))}"
        raise CheckpointError(f"names {name}, which sha256 does not pin", where=str(index), hint=hint)
    return placed


def _convert(pickle: Path, sha256: str, out: Path, on_bytes: OnBytes) -> None:
    """Verify the digest of a pickle, then write its tensors to `out`."""
    if not pickle.is_file():
        raise CheckpointError("pinned by sha256 but missing", where=str(pickle), hint="correct sha256 in the recipe")
    with pickle.open("rb") as file:
        opened = Path(f"/dev/fd/{file.fileno()}")  # the verified file is opened even if the path changes
        found = file_sha256(opened, on_bytes)
        if found != sha256:
            hint = f"its SHA-256 is {found}; pin it only if you trust the file's origin"
            raise CheckpointError("does not have the SHA-256 pinned in the recipe", where=str(pickle), hint=hint)
        _run_unpickler(pickle, file.fileno(), out)
    fsync_path(out)


def _run_unpickler(pickle: Path, descriptor: int, out: Path) -> None:
    """Convert an open pickle in a child process; a child that still runs on exit is killed with its process group."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    timeout_s = LEAST_TIME_S + pickle.stat().st_size / LEAST_BYTES_PER_S
    command = isolated_python("trtspec.checkpoints.unpickler", f"/dev/fd/{descriptor}", str(out))
    log.info("run %s, which opens %s", join(command), pickle)
    process = subprocess.Popen(
        command,
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[descriptor],
        start_new_session=True,
        preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509  two system calls, no lock
    )
    try:
        errors = process.communicate(timeout=timeout_s)[1].decode(errors="replace").splitlines()
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"was not converted within {timeout_s:.0f} s",
            where=str(pickle),
            hint="try again with less load on this machine, or convert it to safetensors elsewhere",
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LEAST_TIME_S)
    if process.returncode:
        ended = f"the process that opened it exited with {process.returncode}"
        raise CheckpointError(
            errors[-1][:500] if errors else ended,
            where=str(pickle),
            hint="convert it to safetensors with the tool that wrote it",
        )


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_name(f"{target.name}.lock")):
        yield


@contextmanager
def _explain_os_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "free space or make the cache (TRTSPEC_CACHE) writable, then build again"
        raise CheckpointError(
            f"cannot be created: {error.strerror}", where=str(target), hint=os_error_remedy(error) or hint
        ) from error
