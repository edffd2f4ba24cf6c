"""The executors of a session, made ready once: what they need is shipped to them, and whether they can work is tried before anything is claimed.

Local tasks run beside the driver and need nothing. Elsewhere the first pass of a session costs one small job more, and each further store or
handler another one.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import sys
import tempfile
import threading
import zipfile
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import airflow_poison
from airflow_poison.spark.jobs import jobs_of, why
from airflow_poison.store.disk import POSIX
from airflow_poison.values.errors import ExecutorError, SettingError
from airflow_poison.values.libraries import pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_poison.delivery.handlers import HandlerRef
    from airflow_poison.store.disk import Folder


MOST_TASKS = 4_096
"""Of a look at the executors: as many as run at the same time where no more do."""


@dataclass(slots=True)
class _Known:
    """What is known of the executors of one session."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    shipped: set[str] = field(default_factory=set)
    seen: set[tuple[str, object]] = field(default_factory=set)
    cores: int = 0


_sessions: dict[str, _Known] = {}


class Executors:
    """The executors of a session.

    :param parallelism: how many tasks a pass has; None: as many as run at the same time.
    """

    def __init__(self, spark: SparkSession, parallelism: int | None = None) -> None:
        self._spark, self.jobs, self._parallelism = spark, jobs_of(spark), parallelism
        self._known = _sessions.setdefault(self.jobs.identity, _Known())

    def parallelism(self) -> int:
        """Return how many tasks a pass has."""
        if self._parallelism is not None:
            return self._parallelism
        cores = self.jobs.cores()
        if cores is None:
            with self._known.lock:
                cores = self._known.cores = self._known.cores or len(self._look(None))
        return max(cores, 1)

    def ship(self, py_files: Sequence[str], *, ours: bool = False) -> None:
        """Let every executor import from these files; what has been shipped is not shipped again.

        :param ours: they are this package.
        """
        with self._known.lock:
            for path in py_files:
                if path not in self._known.shipped:
                    self.jobs.ship(shippable(path), ours=ours)
                    self._known.shipped.add(path)

    def make_ready(self, folder: Folder, handler: HandlerRef | None = None) -> None:
        """See to it that executors can work on a queue. Raises ExecutorError, with nothing claimed or sent.

        :param folder: the queue's; every executor must see what this process writes there, and write there itself.
        :param handler: what they must be able to load.
        """
        if self.jobs.local:
            return
        wanted = (folder.uri.rpartition("/")[0], None if handler is None else (handler.name, handler.by_value))
        with self._known.lock:
            if wanted in self._known.seen:
                return
            self.ship([own_package()], ours=True)
            self._try(folder, handler)
            self._known.seen.add(wanted)

    def _try(self, folder: Folder, handler: HandlerRef | None) -> None:
        """Have every executor import, load, read and write."""
        probe = f"_stage/send-look-{token_hex(8)}"  # maintenance removes what is left of it, when it is old
        parts = None if handler is None else (handler.name, handler.by_value, handler.path)
        place = Path(folder.root, probe)
        place.mkdir(parents=True)
        try:
            (place / MARK).write_text(probe)
            folder.share([f"{probe}/{MARK}"])
            answers = self._look((airflow_poison.__version__, parts, pickle.dumps(folder), probe))
            self._known.cores = len(answers)
            for answer in answers:
                if answer["lacks"] or not _is_there(folder, f"{probe}/{answer['wrote']}"):
                    raise ExecutorError(_lacking(answer, folder, handler))
        finally:
            folder.remove_tree(probe)

    def _look(self, wanted: Wanted | None) -> list[dict[str, str]]:
        """Run a job with a task on every core; return what they answer."""
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        try:
            rows = self._spark.range(0, MOST_TASKS).mapInArrow(partial(answer, wanted), schema="answer string").collect()
        except Exception as error:
            raise ExecutorError(
                f"Spark could not run a Python function on its executors: {why(error)}\nNothing was claimed or sent. Spark's own log has the rest."
            ) from error
        return [json.loads(row["answer"]) for row in rows]


def _is_there(folder: Folder, path: str) -> bool:
    try:
        return folder.here(path).exists()
    except OSError:
        return False


def _lacking(answer: dict[str, str], folder: Folder, handler: HandlerRef | None) -> str:
    """Return what an executor lacks, and what to do about it."""
    where, because = f"Spark's executor on {answer['host']} ({answer['python']})", answer["why"]
    match answer["lacks"]:
        case "module":
            return f"{where} lacks a module: {because}. Install {', '.join(NEEDS)} for its Python, or name one that has them in PYSPARK_PYTHON."
        case "package":
            return (
                f"{where} cannot use airflow_poison {airflow_poison.__version__}, which was shipped to it: {because}. "
                "Remove an older installation there, or install this version."
            )
        case "handler":
            name = "" if handler is None else handler.name
            ship = "Ship its module, and what that imports, with py_files=[…], or install them there."
            return f"{where} cannot load the handler {name!r}: {because} {ship}"
    because = because or "what it wrote there is not seen here"
    if folder.node:
        return (
            f"{where} cannot work with {folder.uri}: {because}. Executors need the package obstore, the way to the object store and its "
            "credentials: those of the connection travel with the task, those of the environment must be in theirs, too."
        )
    return (
        f"{where} does not see the queue's folder {folder.uri} as this process does: {because}. The store must be on a file system that the task and "
        f"all executors mount at the same path, {POSIX}; otherwise receive with spark='local[*]'."
    )


NEEDS = ("numpy", "pyarrow", "cloudpickle")
"""What this package imports on executors. Spark itself needs pyarrow and pandas there for Python functions."""
MARK = "mark"
Wanted = tuple[str, tuple[str, bytes | None, tuple[str, ...]] | None, bytes, str]
"""What an executor must be able to do: this version of the package; a handler that it must load, as the parts of a HandlerRef; the queue's folder,
pickled, and the name of a folder in it where it must see a file ``mark`` that holds this name, and be able to write."""


def answer(wanted: Wanted | None, batches: Any) -> Iterator[pa.RecordBatch]:
    """Look whether an executor can work on a queue. Yield one row: a JSON object: where the task ran, what it lacks, and what it wrote.

    It travels by value, with what it calls: what it looks for may not be there. So nothing of this package, and nothing that is not Python's own, is
    imported before its turn.

    :param wanted: None: the task only counts.
    """
    for _ in batches:
        pass
    report = {"host": socket.gethostname(), "python": sys.executable, "lacks": "", "why": "", "wrote": uuid4().hex}
    if wanted is not None:
        try:
            _look(report, *wanted)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it is, the driver reports it)
            report["why"] = f"{type(error).__name__}: {error}"
    yield pa.record_batch([pa.array([json.dumps(report)])], names=["answer"])


def _look(report: dict[str, str], version: str, handler: tuple[Any, ...] | None, pickled: bytes, probe: str) -> None:
    """Try one thing after the other; ``lacks`` names what is being tried, and is empty in the end."""
    report["lacks"] = "module"
    for module in NEEDS:
        import_module(module)
    report["lacks"] = "package"
    package: Any = import_module("airflow_poison")
    import_module("airflow_poison.delivery.stage")
    if package.__version__ != version:
        raise ImportError(f"it finds version {package.__version__} in {package.__file__}")
    report["lacks"] = "handler"
    handlers: Any = import_module("airflow_poison.delivery.handlers")
    if handler is not None:
        handlers.load_handler(handlers.HandlerRef(*handler))
    report["lacks"] = "store"
    folder: Any = pickle.loads(pickled)  # noqa: S301  (the driver's)
    if folder.here(f"{probe}/{MARK}").read_text() != probe:
        raise OSError("another file is there")
    Path(folder.root, probe, report["wrote"]).touch()
    folder.share([f"{probe}/{report['wrote']}"])
    report["lacks"] = ""


KINDS = (".py", ".zip", ".egg", ".whl")
_PURE = "-none-any.whl"


def checked_files(*lists: Sequence[str]) -> tuple[str, ...]:
    """Return the files' whole paths, each once.

    Raises SettingError for what is not there or cannot be imported from, and for two files of one name: executors keep them in one folder.
    """
    found: dict[str, str] = {}
    for py_files in lists:
        if isinstance(py_files, str):
            raise SettingError("py_files", py_files, "a list of files")
        for name in py_files:
            path = _checked(name)
            other = found.setdefault(path.name, str(path))
            if other != str(path):
                raise SettingError("py_files", name, f"files of different names, and {other} is there already; rename one of them")
    return tuple(found.values())


def _checked(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if path.suffix not in KINDS:
        raise SettingError("py_files", name, f"files that end in {', '.join(KINDS)}")
    if not path.is_file():
        raise SettingError("py_files", name, "files that are on the machine of the task")
    if path.suffix == ".whl" and not path.name.endswith(_PURE):
        raise SettingError("py_files", name, f"wheels of pure Python (…{_PURE}): compiled code cannot be imported from an archive; install it there")
    return path


def import_here(py_files: Sequence[str]) -> None:
    """Let this process import what the executors will: handlers are looked up here first."""
    for name in py_files:
        entry = str(Path(name).parent) if name.endswith(".py") else name
        if entry not in sys.path:
            sys.path.append(entry)


def shippable(path: str) -> str:
    """Return a copy, which stays as it is while Spark serves it, under a name from which Spark imports: it does not know wheels for archives."""
    name = Path(path).name
    copy = Path(tempfile.mkdtemp(dir=_folder().name)) / (f"{name}.zip" if name.endswith(".whl") else name)
    shutil.copyfile(path, copy)
    return str(copy)


_PACKAGES = ("values", "rules", "dialogs", "store", "outputs", "delivery", "fsck", "sources", "spark", "passes", "desk", "watching")
"""The packages that know nothing of Airflow."""


@cache
def own_package() -> str:
    """Return an archive of the packages that know nothing of Airflow, compiled: every worker imports it anew."""
    home = Path(airflow_poison.__file__).parent
    if not home.is_dir():  # this process has it from an archive
        return str(home.parent)
    folder = Path(_folder().name)
    copy = folder / home.name
    copy.mkdir()
    shutil.copy2(home / "__init__.py", copy)
    for package in _PACKAGES:
        shutil.copytree(home / package, copy / package)  # with what Python has compiled of it already
    archive = folder / f"{home.name}-{airflow_poison.__version__}.zip"
    with zipfile.PyZipFile(str(archive), "w", zipfile.ZIP_DEFLATED) as file:
        file.writepy(str(copy))
    return str(archive)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes when this process ends."""
    return tempfile.TemporaryDirectory(prefix="airflow-poison-", ignore_cleanup_errors=True)
