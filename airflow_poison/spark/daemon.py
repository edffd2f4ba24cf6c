"""The process that the Python workers of Spark on this machine are forked from.

At the start of each task a worker has Python forget what it knows of the path, and the directories of archives on it are read again, once for each
package in them: 16 times, a fifth of a second. Spark puts its own package on the path as an archive, although the installed one is there, too.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

ARCHIVES = (".zip", ".jar")
IMPORTED = ("pandas", "msgspec", "airflow_poison.spark.messages")
"""What most workers import: here it is imported once, and they have it. A worker that begins anew, as behind each task that fails, takes a third."""


def without_archives(path: list[str]) -> list[str]:
    """Return a path without Spark's archives, where the packages in them can be imported from it as well, in the version of the same installation."""
    folders = [entry for entry in path if not entry.endswith(ARCHIVES)]
    spark, py4j = (PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return path
    home = Path(spark.origin).resolve().parent
    return [entry for entry in path if entry in folders or not Path(entry).resolve().is_relative_to(home)]


def main() -> None:
    """Be Spark's own daemon, with a path on which nothing is read again; its workers catch errors of Python functions where a task asks for it."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()  # of what this process has imported until now; Python makes it again for what is on the path
    for name in IMPORTED:
        with suppress(ImportError):  # it is not installed; what needs it says so
            import_module(name)
    from pyspark.daemon import manager

    from airflow_poison.spark import python_errors

    python_errors.catch()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
