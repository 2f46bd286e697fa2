# SPDX-License-Identifier: Apache-2.0
"""Trial of tokenizers in a child process before any trtspec process loads them.

The tokenizers library panics on some files, aborts the process on others, and allocates gigabytes for one large id.
Successful trials are cached per user, by the digest of the files and the library's version:

    CACHE/vetted/KEY    empty; KEY is the digest of the files' bytes and the versions
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from trtspec.core.errors import CheckpointError
from trtspec.core.files import UnreadableFile, describe_read_error, read_bounded
from trtspec.core.paths import cache_dir
from trtspec.core.processes import installed_version
from trtspec.core.sandbox import REFUSED, SandboxError, SandboxLimits, run_in_child

FORMAT = "trtspec.vetted/1"
LIMITS = SandboxLimits(memory_bytes=4 << 30, cpu_s=60, wall_s=180, output_bytes=4096)
MAX_BYTES = 64 << 20
# The files that affect the loaded tokenizer, the tokenizer itself first.
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")


def vet(root: Path) -> None:
    """Raise CheckpointError if a tokenizer cannot be loaded and used within limits.

    Does nothing without the tokenizers library, which loading needs too.
    """
    if find_spec("tokenizers") is None:
        return
    passed = cache_dir() / "vetted" / _key(root)
    if passed.is_file():
        return
    try:
        run_in_child("trtspec.checkpoints.tokenizer_trial:attempt", str(root.absolute()), limits=LIMITS)
    except SandboxError as error:
        if error.cause == REFUSED:
            raise CheckpointError(error.message, where=str(root / FILES[0]), hint=error.hint) from None
        message = f"not a usable tokenizer: the tokenizers library cannot load it ({error.message})"
        hint = "save it again with AutoTokenizer, or use the file from the model's repository"
        raise CheckpointError(message, where=str(root / FILES[0]), hint=hint) from None
    with suppress(OSError):  # without the cache entry the trial is repeated
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def _key(root: Path) -> str:
    digest = hashlib.sha256(f"{FORMAT} {installed_version('tokenizers')}".encode())
    for name in FILES:
        path = root / name
        if path.is_file():
            try:
                content = read_bounded(path, MAX_BYTES)
            except UnreadableFile as error:
                raise CheckpointError(describe_read_error(error), where=str(path)) from None
            except OSError as error:
                raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
            digest.update(f"\n{name} {len(content)}\n".encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()
