"""Journal files that are not as they were left: what is told of them, and which of them stop a pass.

What is lost counts for nothing, and the log says so. What is there and may not be read is an error: it can be mended, and forgetting it would
deliver again what was settled.
"""

from __future__ import annotations

import logging
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger(__name__)


def tell(path: Path, what: str) -> None:
    """Log what of a journal, or of the texts beside it, cannot be read."""
    log.warning(
        "The attempt journal %s is damaged: %s. What it said there is not known; messages of which nothing else is known are delivered again.",
        path,
        what,
    )


class Reading:
    """Look into a file or folder of journals; what is gone, and a folder in place of a file, hold nothing.

    Raises ServerSessionError for what cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return True
        if isinstance(error, IsADirectoryError):
            tell(self._path, "it is a folder")
            return True
        if isinstance(error, OSError):
            raise ServerSessionError(
                f"The attempt journal {str(self._path)!r} cannot be read: {error.strerror or error}. Nothing was delivered. Give this user the right "
                "to read it, then run the task again; if it is lost for good, remove it: its messages are delivered again then, settled ones too."
            ) from error
        return False


def names(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder of journals that match. A folder that may not be listed is an error (a glob passes over it)."""
    with Reading(folder):
        return [folder / name for name in os.listdir(folder) if fnmatchcase(name, pattern)]  # noqa: PTH208  (names only)
    return []
