# SPDX-License-Identifier: Apache-2.0
"""Every error a user can act on, and the exit code it ends a command with.

    TrtspecError              1   wrong usage, or something on this machine the user can change
      RecipeError             1   the recipe; carries every problem found, with file:line:column (recipe/diagnostics.py)
      CheckpointError         1   a source or converted checkpoint cannot be read or does not add up
        UnsupportedModel      1   a model that the conversion does not support; some engines run it as it is
          UnknownArchitecture 1   no family describes the checkpoint
      DeployError             1   a server cannot be started, found or stopped
      Overloaded              1   too much is asked of a server at once
      EngineFailed            1   an engine ended, and serves no more requests
      StepError             100   a build step failed
        SourceChanged       100   what a step read is not, or no longer, what its key says
      StepTimeout           101   a build step or a server ran out of its time
      DigestMismatch        102   bytes on disk are not the bytes that were recorded
        UnknownCode         102   an artifact has code that this trtspec did not emit
      VerificationFailed    110   the artifact does not say what the target says
      SmokeTestFailed       111   a started server did not answer its first request
      GateNotMet            112   a gate of the recipe does not hold

A TrtspecError is printed without a traceback. Anything else is a bug of ours: traceback, exit code 70; only what the
machine refuses (`refusal`) never is one.
"""

from __future__ import annotations

import errno

# What the machine may refuse, in words that go before a path; any other OSError is a bug.
_REFUSALS = {
    errno.ENOSPC: "no space left on",
    errno.EDQUOT: "the disk quota is used up on",
    errno.EFBIG: "no file may grow as large as needed on",
    errno.EIO: "the disk fails to read or write",
    errno.EROFS: "no writing is allowed to the file system of",
    errno.EACCES: "permission denied for",
    errno.EPERM: "no permission for this with",
    errno.ENOTDIR: "a file is in the way to",
    errno.EEXIST: "something else lies at",
    errno.ELOOP: "links lead in a circle at",
    errno.ENAMETOOLONG: "the file system takes no name as long as",
    errno.ENOLCK: "no locks are available on the file system of",
    errno.EOPNOTSUPP: "the file system does not support this operation on",
    errno.ENOSYS: "the system does not support this operation on",
    errno.ESTALE: "the file server no longer has",
    errno.ENXIO: "no such device:",
    errno.ETIMEDOUT: "the file server does not answer for",
}
# What runs out without being about one path.
_EXHAUSTED = {
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "not enough memory",
    errno.EAGAIN: "this machine gives no more processes or threads",
}
# Texts by which RuntimeError, ImportError and such of libraries tell that memory or threads ran out.
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
_GROWING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what only writing meets


def refusal(error: OSError) -> str | None:
    """Return what the machine refuses, to be followed by a path; None for what only a bug of ours can ask for."""
    if not error.errno:  # a file that is not fit to be read, in words of ours
        return f"{error.strerror}:" if error.strerror else None
    return f"{_EXHAUSTED[error.errno]} at" if error.errno in _EXHAUSTED else _REFUSALS.get(error.errno)


def describe_refusal(error: OSError, otherwise: str) -> str | None:
    """Return what the machine refuses and where, or `otherwise` for the place; None as with `refusal`."""
    refused, path = refusal(error), refused_at(error)
    if refused and not path and error.errno in _EXHAUSTED:
        return _EXHAUSTED[error.errno]
    return f"{refused} {path or otherwise}" if refused else None


def remedy_of(error: OSError) -> str | None:
    """Return what to do about a refusal of the machine; None where that depends on the command."""
    return _REMEDIES.get(error.errno or 0)


def exhaustion(error: BaseException) -> TrtspecError | None:
    """Return an error for a MemoryError or what libraries raise in its place, and for threads; None for others.

    What an error was raised from counts too: an import that fails for want of memory has other words of its own.
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
        return TrtspecError("this machine gives no more threads", hint=THREADS_HINT)
    says_so = isinstance(error, RuntimeError | ImportError | SystemError) and any(
        each in text.lower() for each in _OUT_OF_MEMORY
    )
    if isinstance(error, MemoryError) or says_so:
        return TrtspecError("not enough memory", hint=MEMORY_HINT)
    return None


def refused_at(error: OSError) -> str | None:
    """Return the path that is refused: of a copy without room its place, which shutil names second."""
    is_copy = error.errno in _GROWING and error.filename2
    path = error.filename2 if is_copy else error.filename
    return str(path) if path else None


class TrtspecError(Exception):
    """Something the user can act on: what is wrong, where, and what to do about it."""

    exit_code = 1
    remedy: str | None = None  # what to do where whoever raises it knows nothing better

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
    """A source or converted checkpoint cannot be read or does not add up.

    Its hint depends on the cause: there is none for the whole class.
    """


class UnsupportedModel(CheckpointError):
    """The conversion does not support the model, or something that its config.json asks for."""


class UnknownArchitecture(UnsupportedModel):
    """No family describes the checkpoint, so that it cannot be converted; some engines run it as it is."""

    def __init__(self, message: str, *, architecture: str, where: str, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.architecture = architecture


class DeployError(TrtspecError):
    """A server cannot be started, found or stopped."""

    remedy = "`trtspec ps` shows the deployments, and `trtspec logs NAME` what a server said"


class Overloaded(TrtspecError):
    """More is asked of a server at once than may wait: what is asked later may be done.

    `status` is Triton's name of the kind. Where only words come through, it is known by `WORDS`.
    """

    status = "UNAVAILABLE"
    WORDS = "the queue is full"

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{self.WORDS}: {waiting} requests wait (serving.max_queue_size)")


class EngineFailed(TrtspecError):
    """An engine ended on an error of its own. `status` is Triton's name of the kind."""

    status = "INTERNAL"


class StepError(TrtspecError):
    """A build step failed."""

    exit_code = 100
    remedy = "remove the cause and build again: what was made is kept"


class SourceChanged(StepError):
    """What a step read is not, or no longer, what its key says: nothing that was made of it is of use."""

    remedy = "build again"


class StepTimeout(TrtspecError):
    """A build step or a server ran out of its time."""

    exit_code = 101


class DigestMismatch(TrtspecError):
    """Bytes on disk are not the bytes that were recorded."""

    exit_code = 102
    remedy = "`trtspec build` makes the artifact again from what is whole"


class UnknownCode(DigestMismatch):
    """An artifact has code that this trtspec did not emit, and that nobody allowed."""


class VerificationFailed(TrtspecError):
    """The artifact does not say what the target says."""

    exit_code = 110


class SmokeTestFailed(TrtspecError):
    """A started server did not answer its first request."""

    exit_code = 111
    remedy = DeployError.remedy


class GateNotMet(TrtspecError):
    """A gate of the recipe does not hold."""

    exit_code = 112


class RolledBack(TrtspecError):
    """A new revision was not good enough, and the one before serves again."""

    exit_code = 113
    remedy = "`trtspec history NAME` says what happened, and `trtspec logs NAME` what its server said"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.reason = reason
