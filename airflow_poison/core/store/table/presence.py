"""Whether the files that the log names are there, whole: what somebody does to them without a commit is noticed here.

One look at the folder for each file when a queue is opened; the footers of what a claim takes. Bodies are never read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.core.errors import StoreUnreachableError, TableChangedError
from airflow_poison.core.store.table.files import describe, gone

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_poison.core.store.files import DataFile

_COMPARED = ("rows", "min_lookup_id", "max_lookup_id", "min_priority", "max_priority")


def check_there(root: str, found: Iterable[DataFile]) -> None:
    """Raise TableChangedError for a file that is gone or has another size than the log says, StoreUnreachableError for one that cannot be seen."""
    for file in found:
        try:
            size = Path(root, file.path).stat().st_size
        except FileNotFoundError as error:
            raise TableChangedError(gone(root, file.path)) from error
        except OSError as error:
            raise StoreUnreachableError(_unreadable(root, file, error)) from error
        if size != file.size:
            raise TableChangedError(changed(root, file, f"it has {size} bytes; expected {file.size}"))


def check_whole(root: str, found: Iterable[DataFile]) -> None:
    """Raise TableChangedError for a file whose footer cannot be read or does not say what the log says."""
    for file in found:
        difference = footer_difference(root, file)
        if difference:
            raise TableChangedError(changed(root, file, difference))


def footer_difference(root: str, file: DataFile, names: Sequence[str] = _COMPARED) -> str:
    """Return how a file's footer differs from the log, in words; empty when it does not. Raises TableChangedError, StoreUnreachableError."""
    import pyarrow as pa

    check_there(root, [file])
    try:
        footer = describe(root, file.path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return f"its footer cannot be read ({str(error).partition(chr(10))[0]})"
    except OSError as error:
        if error.errno is None:  # Arrow's word for a file that is no Parquet
            return f"its footer cannot be read ({str(error).partition(chr(10))[0]})"
        raise StoreUnreachableError(_unreadable(root, file, error)) from error
    return "; ".join(
        f"its footer says {name.replace('_', ' ')} {getattr(footer, name)}; expected {getattr(file, name)}"
        for name in names
        if getattr(footer, name) != getattr(file, name)
    )


def changed(root: str, file: DataFile, difference: str) -> str:
    """Return the words for a file that is not what was committed."""
    return (
        f"The file {file.path} of the queue table {root} is not what was committed: {difference}. Nothing was committed by this verb. Restore the "
        "file from a backup, find what writes there and stop that; 'airflow poison check' lists every such file."
    )


def _unreadable(root: str, file: DataFile, error: OSError) -> str:
    return (
        f"The file {file.path} of the queue table {root} cannot be read: {error.strerror or error}. Nothing was committed by this verb. "
        "Give this user the right to read and write the table's folder again, then run the task again."
    )
