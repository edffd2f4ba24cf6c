"""What a task does that looks whether its executor can work on a queue. It travels by value: what it looks for may not be there.

Therefore nothing of this package, and nothing that is not Python's own, is imported before its turn.
"""

from __future__ import annotations

import json
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

NEEDS = ("numpy", "pyarrow", "cloudpickle")
"""What this package imports on executors. Spark itself needs pyarrow and pandas there for Python functions."""
MARK = "mark"
ANSWER = "answer string"


class Wanted(NamedTuple):
    """What an executor must be able to do.

    :param version: of this package.
    :param handler: the parts of a HandlerRef; None: there is none.
    :param folder: where it must see a file ``mark`` that holds the folder's name, and be able to write.
    """

    version: str
    handler: tuple[str, bytes | None, tuple[str, ...]] | None
    folder: str


def answer(wanted: tuple[Any, ...] | None, batches: Any) -> Iterator[pa.RecordBatch]:
    """Yield one row: a JSON object that says where the task ran, what it lacks, and what it wrote.

    :param wanted: the parts of a Wanted; None: the task only counts.
    """
    import pyarrow as pa

    for _ in batches:
        pass
    said = {"host": socket.gethostname(), "python": sys.executable, "lacks": "", "why": "", "wrote": uuid4().hex}
    if wanted is not None:
        try:
            _look(said, *wanted)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it is, the driver tells it)
            said["why"] = f"{type(error).__name__}: {error}"
    yield pa.record_batch([pa.array([json.dumps(said)])], names=["answer"])


def _look(said: dict[str, str], version: str, handler: tuple[Any, ...] | None, folder: str) -> None:
    """Try one thing after the other; ``lacks`` names what is being tried, and is empty in the end."""
    said["lacks"] = "module"
    for module in NEEDS:
        import_module(module)
    said["lacks"] = "package"
    package: Any = import_module("airflow_poison")
    import_module("airflow_poison.core.delivery.stage")
    if package.__version__ != version:
        raise ImportError(f"it finds version {package.__version__} in {package.__file__}")
    said["lacks"] = "handler"
    handlers: Any = import_module("airflow_poison.core.delivery.handlers")
    if handler is not None:
        handlers.load_handler(handlers.HandlerRef(*handler))
    said["lacks"] = "store"
    if (Path(folder) / MARK).read_text() != Path(folder).name:
        raise OSError("another file is there")
    (Path(folder) / said["wrote"]).touch()
    said["lacks"] = ""
