# SPDX-License-Identifier: Apache-2.0
"""Exceptions for errors that the user can fix, with their exit codes, and descriptions of operating system errors.

    `TrtspecError`              1   wrong usage, or a problem on this machine that the user can fix
      `CheckpointError`         1   a source or converted checkpoint is unreadable or inconsistent
        `UnsupportedModel`      1   the conversion does not support the model; some engines run it unconverted
          `UnsupportedArchitecture` 1   no family matches the checkpoint
      `DeployError`             1   a server cannot be started, found or stopped
      `Overloaded`              1   a server's request queue is full
      `EngineFailed`            1   an engine stopped and serves no more requests
      `StepError`             100   a build step failed
        `SourceChanged`       100   a step's input does not match, or no longer matches, its key
      `StepTimeout`           101   a build step or a server exceeded its time limit
      `DigestMismatch`        102   the bytes on disk differ from the recorded digest
        `UntrustedCode`         102   an artifact contains code that this trtspec did not emit
      `VerificationFailed`    110   the artifact's output differs from the target's
      `SmokeTestFailed`       111   a started server did not answer its first request
      `GateNotMet`            112   a gate of the recipe failed
      `RolledBack`            113   a rollout failed and the previous revision serves again
      `SignatureRefused`      114   no signature of an artifact fulfils the policy

Subclasses in other modules, all with exit code 1:

    TrtspecError     `RecipeError` (core/diagnostics.py), `SandboxError` (core/sandbox.py),
                     `TokenizersDiffer` (checkpoints/tokenizer.py), `ChatError` (engine/prompts/prompt.py),
                     `ModelError` and `DraftFailed` (serving/triton/python_models/grpc_client.py and bls.py),
                     `RegistryError` (store/registries/http_client.py),
                     `GuideRefused` (engine/generation/grammar_trial.py)
    Overloaded       `GuidesOverloaded` (engine/generation/grammar_compiler.py)
    CheckpointError  `NotPreparedError` (checkpoints/source.py) and its subclass `HubError` (checkpoints/hub.py)
    DeployError      `PortInUse` (deployment/ports.py), `ToolFailed` (core/container_tools.py),
                     `ProbeFailed` (deployment/rollout/canary.py), `BadAnswer` (bench/load/api.py) and its
                     subclass `ServerRejected` (bench/load/client.py)

A TrtspecError is printed without a traceback, and so is an OSError that `describe_os_error` recognizes. Any other
exception is a bug in trtspec: it is printed with its traceback, and the exit code is 70.
"""

from __future__ import annotations

import errno

# Descriptions of operating system errors, to be followed by a path. An OSError that is not listed is a bug.
_REFUSALS = {
    errno.ENOSPC: "no space left on",
    errno.EDQUOT: "disk quota exceeded on",
    errno.EFBIG: "the file exceeds the maximum file size on",
    errno.EIO: "disk I/O error at",
    errno.EROFS: "read-only file system at",
    errno.EACCES: "permission denied for",
    errno.EPERM: "operation not permitted on",
    errno.ENOTDIR: "a parent of this path is not a directory:",
    errno.EEXIST: "a file or directory already exists at",
    errno.ELOOP: "too many levels of symbolic links at",
    errno.ENAMETOOLONG: "file name too long for the file system:",
    errno.ENOLCK: "no locks are available on the file system of",
    errno.EOPNOTSUPP: "the file system does not support this operation on",
    errno.ENOSYS: "the system does not support this operation on",
    errno.ESTALE: "stale file handle of a network file system:",
    errno.ENXIO: "no such device:",
    errno.ETIMEDOUT: "the file server does not respond for",
}
# Descriptions of exhausted resources, for which a path is not essential.
_EXHAUSTED = {
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "not enough memory",
    errno.EAGAIN: "the limit of processes or threads is reached",
}
# Parts of the messages of libraries' RuntimeError, ImportError and SystemError when memory or threads run out.
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "failed to map segment", "bad_alloc", "bad allocation")
_OUT_OF_THREADS = "can't start new thread"
MEMORY_HINT = "free memory, raise the limit (ulimit -v, or the container's), or use a smaller model"
THREADS_HINT = "end other processes, or raise the limit (ulimit -u, ulimit -v, or the container's)"
_REMEDIES = {
    errno.ENOMEM: MEMORY_HINT,
    errno.ENOLCK: "mount it with locks (NFS: without nolock, with a lock daemon), or use a local disk: "
    "TRTSPEC_CACHE, TRTSPEC_STATE, --out",
    errno.EOPNOTSUPP: "use a local disk: TRTSPEC_CACHE, TRTSPEC_STATE, --out",
    errno.ENOSYS: "use a local disk: TRTSPEC_CACHE, TRTSPEC_STATE, --out",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENFILE: "end other processes, or raise fs.file-max",
    errno.EAGAIN: THREADS_HINT,
    errno.ESTALE: "mount it again, or use a local disk: TRTSPEC_CACHE, TRTSPEC_STATE, --out",
    errno.ETIMEDOUT: "mount it again, or use a local disk: TRTSPEC_CACHE, TRTSPEC_STATE, --out",
}
_GROWING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # only writing raises these


def describe_os_error(error: OSError) -> str | None:
    """Return the description of an OSError, to be completed by a path, or None if it indicates a bug in trtspec."""
    if not error.errno:  # an UnreadableFile: its `strerror` is trtspec's own message
        return f"{error.strerror}:" if error.strerror else None
    return f"{_EXHAUSTED[error.errno]} at" if error.errno in _EXHAUSTED else _REFUSALS.get(error.errno)


def describe_os_error_at(error: OSError, otherwise: str) -> str | None:
    """Return the description of an OSError followed by its path, or by `otherwise` without one; None for a bug."""
    refused, path = describe_os_error(error), os_error_path(error)
    if refused and not path and error.errno in _EXHAUSTED:
        return _EXHAUSTED[error.errno]
    return f"{refused} {path or otherwise}" if refused else None


def os_error_remedy(error: OSError) -> str | None:
    """Return the remedy for an OSError, or None if the remedy depends on the command or is unknown."""
    return _REMEDIES.get(error.errno or 0)


def resource_exhaustion_error(error: BaseException) -> TrtspecError | None:
    """Return a TrtspecError if `error` was caused by exhausted memory or threads, else None.

    Recognizes MemoryError and the errors that libraries raise instead of it. Also examines the chained exceptions,
    because a failed import, for example, hides the original error behind its own.
    """
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return next(filter(None, map(_exhaustion, chain)), None)


def _exhaustion(error: BaseException) -> TrtspecError | None:
    text = str(error)
    if isinstance(error, RuntimeError) and _OUT_OF_THREADS in text:
        return TrtspecError("the limit of threads is reached", hint=THREADS_HINT)
    is_oom = isinstance(error, RuntimeError | ImportError | SystemError) and any(
        each in text.lower() for each in _OUT_OF_MEMORY
    )
    if isinstance(error, MemoryError) or is_oom:
        return TrtspecError("not enough memory", hint=MEMORY_HINT)
    return None


def os_error_path(error: OSError) -> str | None:
    """Return the path of an OSError, or None; for a copy that ran out of disk space, it is the destination."""
    is_copy = error.errno in _GROWING and error.filename2
    path = error.filename2 if is_copy else error.filename
    return str(path) if path else None


class TrtspecError(Exception):
    """An error that the user can fix: the problem (`message`), its location (`where`) and how to fix it (`hint`)."""

    exit_code = 1
    remedy: str | None = None  # default hint

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class CheckpointError(TrtspecError):
    """A source checkpoint or a converted checkpoint is unreadable or inconsistent.

    The fix depends on the cause, so the class does not set a default hint.
    """


class UnsupportedModel(CheckpointError):
    """The conversion does not support the model or a setting in its config.json."""


class UnsupportedArchitecture(UnsupportedModel):
    """No model family matches the checkpoint, so it cannot be converted; some engines run it unconverted."""

    def __init__(self, message: str, *, architecture: str, where: str, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.architecture = architecture


class DeployError(TrtspecError):
    """A server cannot be started, found or stopped."""

    remedy = "`trtspec ps` lists the deployments; `trtspec logs NAME` prints a server's log"


class Overloaded(TrtspecError):
    """A server's request queue is full; the client may retry later.

    `status` is the name of Triton's status code. Code that receives only the message recognizes the error by `WORDS`.
    """

    status = "UNAVAILABLE"
    WORDS = "the queue is full"

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{self.WORDS}: {waiting} requests wait (serving.max_queue_size)")


class EngineFailed(TrtspecError):
    """An engine stopped because of an internal error; `status` is the name of Triton's status code."""

    status = "INTERNAL"


class StepError(TrtspecError):
    """A build step failed."""

    exit_code = 100
    remedy = "remove the cause and build again; finished steps are cached"


class SourceChanged(StepError):
    """The input of a build step does not match the step's key, or changed during the step; its outputs are invalid."""

    remedy = "build again"


class StepTimeout(TrtspecError):
    """A build step or a server exceeded its time limit."""

    exit_code = 101


class DigestMismatch(TrtspecError):
    """A file's bytes differ from its recorded digest."""

    exit_code = 102
    remedy = "`trtspec build` rebuilds the artifact from the intact steps"


class UntrustedCode(DigestMismatch):
    """An artifact contains code that this trtspec did not emit and that the user did not allow."""


class VerificationFailed(TrtspecError):
    """The text that an artifact generates differs from the text of its target model."""

    exit_code = 110


class SmokeTestFailed(TrtspecError):
    """A started server did not answer its first request."""

    exit_code = 111
    remedy = DeployError.remedy


class GateNotMet(TrtspecError):
    """The artifact misses a gate, which is a measurable requirement of its recipe such as a minimum speed-up."""

    exit_code = 112


class RolledBack(TrtspecError):
    """The rollout of a new revision failed, and the previous revision serves again; `reason` is the cause."""

    exit_code = 113
    remedy = "`trtspec history NAME` shows what happened; `trtspec logs NAME` prints the server's log"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.reason = reason


class SignatureRefused(TrtspecError):
    """An artifact is not signed, or not as a policy requires."""

    exit_code = 114
    remedy = "use an artifact that a signer of the policy has signed with `trtspec sign`"
