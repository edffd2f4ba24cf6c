"""Named errors at the seam: what a disk, Arrow or delta-rs raise under a verb reaches nobody without the table's name and what to do.

One place for all verbs: whoever knows better (a lost claim, a missing file, a damaged footer) says so below, and those errors pass.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from airflow_poison.core.errors import PoisonError, StoreUnreachableError, TableChangedError

if TYPE_CHECKING:
    from collections.abc import Callable

POSIX = "with the semantics of POSIX (atomic link, rename and O_EXCL, fsync, flock; local disks are what is tested)"
"""What a file system of a store must do, as errors say it."""

T = TypeVar("T")
_NUMBER = re.compile(r"(?:os error |[Ee]rrno )(\d+)")
_COLOUR = re.compile(r"\x1b\[\d+m")
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "the disk is full. Free some space there"),
    errno.EROFS: "it is read-only. Mount it writable",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission denied. Give this user the right to read and write all of it"),
    errno.ENOTDIR: "a file is in the place of a folder. Name a folder",
    errno.EEXIST: "a file is there already. Name another place",
    errno.EMFILE: "too many files are open. Raise the limit of this process",
    errno.EIO: "the disk reports an error. Look at the disk, restore what is damaged from a backup",
}
_AGAIN = "then run the task again: what has been committed counts, and nothing is done twice"


@contextmanager
def named(root: str, passed: list[BaseException] | None = None) -> Iterator[None]:
    """Turn what is raised about the files below ``root`` into errors of this package: StoreUnreachableError, TableChangedError.

    :param passed: errors of somebody else's, which are left as they are.
    """
    try:
        yield
    except PoisonError:
        raise
    except Exception as error:
        if any(error is other for other in passed or ()):
            raise
        name = _name(root, error)
        if name is None:
            raise
        raise name from error


def seam(kind: type[T]) -> type[T]:
    """Have every public method of a class raise named errors; its ``uri`` says of what.

    Iterators that a method is given are the caller's: what they raise stays as it is.
    """
    for name, member in list(vars(kind).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(kind, name, _guarded(member))
    return kind


def why(error: Exception) -> str:
    """Return the cause of an error and what to do about it, in words."""
    number = _number(error)
    text = " ".join(_COLOUR.sub("", str(error)).split()) or type(error).__name__
    path = getattr(error, "filename", None)
    where = f" ({path})" if path else ""
    if number in _ADVICE:
        cause, _, advice = _ADVICE[number].partition(". ")
        return f"{cause}{where}. {advice}, {_AGAIN}"
    cause = f"{os.strerror(number)}{where}" if number else text[:300].rstrip(".")
    return f"{cause}. Check that it is mounted and whole, {_AGAIN}"


def _guarded(member: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(member)
    def act(self: object, *args: object, **kwargs: object) -> object:
        passed: list[BaseException] = []
        root = str(self.uri)  # type: ignore[attr-defined]  # of the class, see ``seam``
        with named(root, passed):
            found = member(self, *(_watched(each, passed) for each in args), **{name: _watched(each, passed) for name, each in kwargs.items()})
        return _named_ones(root, found) if inspect.isgenerator(found) else found

    return act


def _watched(given: object, passed: list[BaseException]) -> object:
    """Return what a method is given; of an iterator, one that remembers what it raises."""
    return _remembering(given, passed) if isinstance(given, Iterator) else given


def _remembering(source: Iterator[object], passed: list[BaseException]) -> Iterator[object]:
    try:
        yield from source
    except Exception as error:
        passed.append(error)
        raise


def _named_ones(root: str, found: Iterator[object]) -> Iterator[object]:
    with named(root):
        yield from found


def _name(root: str, error: Exception) -> PoisonError | None:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    if isinstance(error, OSError) or (isinstance(error, DeltaError) and _number(error)):
        return StoreUnreachableError(f"The queue table or store {root} cannot be read or written: {why(error)}.")
    if isinstance(error, pa.ArrowException | DeltaError):
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300].rstrip(".")
        return TableChangedError(
            f"The queue table or store {root} holds what cannot be read, or what was to be written does not fit: {cause}. Nothing was committed. "
            "Look at it with 'airflow poison check'; restore what it names from a backup."
        )
    return None


def _number(error: Exception) -> int:
    """Return the system's number of an error; 0 when it has none. delta-rs tells it in the text only."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0
