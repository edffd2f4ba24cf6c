"""What only Linux has, with plain fallbacks: enough to develop elsewhere, not enough for the promises made about kills."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress

from airflow_poison.values.errors import ServerSessionError
from airflow_poison.values.machine import machine as machine  # noqa: PLC0414  (this module has all that depends on the system)

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_OF_THE_PROCESS = frozenset({errno.EFBIG, errno.EBADF})


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(descriptor: int, size: int) -> None:
    """Make a file at least so long, with its blocks allocated.

    A sparse file on a full disk ends the process with SIGBUS at the store; this raises OSError (ENOSPC) instead.
    """
    present = os.fstat(descriptor).st_size
    if size <= present:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, present, size - present)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                raise
        else:
            return
    os.pwrite(descriptor, bytes(size - present), present)


def force(descriptor: int) -> None:
    """Force what a file holds to disk, also what was stored through a mapping of it."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def force_names(folder: str | os.PathLike[str]) -> None:
    """Force a folder's list of names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def force_files(folder: str | os.PathLike[str], files: Iterable[str | os.PathLike[str]]) -> None:
    """Force files of a folder to disk, and their names."""
    for file in files:
        force_names(file)
    force_names(folder)


def watch_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None where the system has none."""
    if hasattr(os, "pidfd_open"):
        with suppress(ProcessLookupError):
            return os.pidfd_open(pid)
    return None


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends. The zygote has one thread, so that is the zygote."""
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill a child that leads its own process group, with everything it has started there."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


class BrokenProcessError(ServerSessionError):
    """The handler has changed this process so that it can no longer record results: the size of files is limited, or files were closed."""


class NotWrittenError(ServerSessionError):
    """A process that delivers cannot write what it has to, such as the columns of an output: no message is charged for that."""


class Appender:
    """Appends to a file that is open; several processes may append to one.

    :param after: what a person does about an error that is no fault of the handler.
    """

    def __init__(self, descriptor: int, after: str) -> None:
        self._descriptor, self._after = descriptor, after
        self._file = None if descriptor < 0 else identity(descriptor)

    def write(self, content: bytes, what: Callable[[], str]) -> None:
        """Append all of this. Raises ServerSessionError, for what a handler has done to its process BrokenProcessError.

        :param what: says what it is, for the error.
        """
        try:
            check_open(self._descriptor, self._file)
            write_all(self._descriptor, content)
        except OSError as error:
            raise not_written(error, what(), file_of(self._descriptor), self._after) from error


def not_written(error: OSError, what: str, where: str, after: str, kind: type[ServerSessionError] = ServerSessionError) -> ServerSessionError:
    """Return why something cannot be written, an error of this kind; BrokenProcessError for what a handler has done to its process."""
    if error.errno in _OF_THE_PROCESS:
        text = f"{what} cannot be written: {why(error)}. A handler has limited or closed the files of its process, which is started anew."
        return BrokenProcessError(text)
    return kind(f"{what} cannot be written: {why(error)} ({where}). {after}")


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of this. Raises OSError."""
    while len(content) > (written := os.write(descriptor, content)):
        content = content[written:]


def identity(descriptor: int) -> tuple[int, int]:
    """Return which file an open one is. Raises OSError."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def check_open(descriptor: int, file: tuple[int, int] | None) -> None:
    """Raise OSError where a file was closed, and another one may have its number now."""
    if identity(descriptor) != file:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def why(error: OSError) -> str:
    """Say why something cannot be written."""
    return "the disk is full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else os.strerror(error.errno or 0)


def file_of(descriptor: int) -> str:
    """Return where an open file lies, for people; only Linux says so."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  (a text)
    except OSError:
        return "the folder of the journals"
