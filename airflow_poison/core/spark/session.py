"""The Spark session of a pass: found or started with what the receive stage needs, after checks that give clear errors."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from airflow_poison.core.errors import JavaError, SparkDistributionError
from airflow_poison.core.spark.connect import SCHEME, connect_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


MINIMUM_JAVA = 17

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.files.openCostInBytes": "0",  # many small files make few tasks
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.speculation": "false",  # a second attempt would wait for the first: only one delivers
    "spark.sql.shuffle.partitions": "8",
    "spark.python.task.killTimeout": "500ms",  # after a cancelled job: a task that is killed has five seconds to give its claim up
    "spark.log.level": "ERROR",
}


def get_session(master: str = "local[*]", conf: Mapping[str, str] | None = None, name: str = "airflow-poison") -> SparkSession:
    """Return the running Spark session, or start one.

    :param master: where Spark runs, for example ``local[*]``, ``spark://host:7077``, or ``sc://host:15002`` for a Spark Connect server.
    :param conf: further settings; they win over the product's own. A session of a server takes only those that are a session's.
    Raises JavaError and SparkDistributionError before a JVM is started, SparkConnectError when no server answers.
    """
    check_distributions(classic=not master.startswith(SCHEME))
    if master.startswith(SCHEME):
        settings = {key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.")}
        return connect_session(master, {**settings, **(conf or {})})
    from pyspark.sql import SparkSession

    running = running_session()
    if running is not None:
        return running
    if master.startswith("local"):
        check_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SETTINGS, **(conf or {})}.items():
        builder = builder.config(key, value)
    with jvm_output_logged():
        return builder.getOrCreate()


def running_session() -> SparkSession | None:
    """Return the classic Spark session of this process, whichever thread has started it; None when there is none."""
    core = sys.modules.get("pyspark.core.context")
    if core is None or core.SparkContext._active_spark_context is None:  # noqa: SLF001  (there is no public way)
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def check_distributions(*, classic: bool = True) -> None:
    """Raise SparkDistributionError when Spark cannot be imported, or ``pyspark`` and ``pyspark-client`` are installed in different versions.

    Both write the same files; the one installed last wins, and only equal versions are byte-identical.

    :param classic: a driver of our own is wanted, which ``pyspark-client`` alone does not have.
    """
    found: dict[str, str] = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if not found:
        raise SparkDistributionError("Neither pyspark nor pyspark-client is installed. Run: pip install 'pyspark==4.1.3'.")
    listed = ", ".join(f"{name} {number}" for name, number in found.items())
    wanted = found.get("pyspark-client", next(iter(found.values())))  # every version of it is one of pyspark, too
    repair = f"pip install --force-reinstall --no-deps {' '.join(f'{name}=={wanted}' for name in found)}"
    try:
        imported, where = _imported(classic=classic)
    except ImportError as error:
        if classic and "pyspark" not in found:
            raise SparkDistributionError(
                f"{listed} is installed without pyspark ({error}): it only connects to a Spark Connect server (spark='sc://host:15002'). "
                f"To run Spark here: pip install pyspark=={wanted}."
            ) from error
        raise SparkDistributionError(
            f"{listed} cannot be imported ({error}): removing one of pyspark and pyspark-client takes files of the other away. Repair: {repair}."
        ) from error
    if len(set(found.values())) > 1:
        raise SparkDistributionError(
            f"Mixed Spark distributions: {listed}, imported as {imported}. They overwrite each other's files, so all must be of one version. "
            f"Repair: {repair}."
        )
    if imported != wanted:
        raise SparkDistributionError(
            f"Mixed Spark distributions: {listed} is installed, but {imported} is imported from {where}. Take that folder off PYTHONPATH, "
            f"or where it is the installed one: {repair}."
        )


def _imported(*, classic: bool) -> tuple[str, str]:
    """Return which version is imported, and from where. Raises ImportError."""
    import pyspark

    if classic:
        import py4j  # noqa: F401
        import pyspark.core.context
    return str(getattr(pyspark, "__version__", "unknown")), os.path.dirname(str(pyspark.__file__))  # noqa: PTH120  (a text)


def check_java() -> None:
    """Raise JavaError when no Java of version 17 or newer is found through JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")  # noqa: PTH118  (also a plain name)
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.path.exists(java):  # noqa: PTH110
        raise JavaError(
            f"Spark needs Java {MINIMUM_JAVA} or newer; none was found through {where}. Install a Java {MINIMUM_JAVA} runtime or set JAVA_HOME."
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    if match is None or int(match[1]) < MINIMUM_JAVA:
        found = match[1] if match else text.strip() or "unknown"
        raise JavaError(f"Spark needs Java {MINIMUM_JAVA} or newer; {where} has Java {found}. Install a newer one and set JAVA_HOME.")


log = logging.getLogger("airflow_poison.spark")

_STDERR = 2
_LEVEL = re.compile(r"^\S+ \S+ (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ")
_LEVELS = {"WARN": logging.WARNING, "ERROR": logging.ERROR, "FATAL": logging.CRITICAL}
_NOISE = re.compile(
    r"^WARNING: Using incubator modules|^Using Spark's .* log4j profile|^Setting (default|Spark) log level|^To adjust logging level"
    r"|^WARNING: .*(sun\.misc\.Unsafe|restricted method|native access)| WARN NativeCodeLoader: "
)
"""What every start says."""


@contextmanager
def jvm_output_logged() -> Iterator[None]:
    """Log what a JVM that is started in this block writes to its standard error, as long as it lives.

    The JVM is given a pipe instead of this process's own; so is, in this block, whatever else of this process writes there.
    """
    py4j = logging.getLogger("py4j")
    if py4j.level == logging.NOTSET:  # it tells of each of its connections that is closed
        py4j.setLevel(logging.WARNING)
    read, write = os.pipe2(os.O_CLOEXEC)
    own = os.dup(_STDERR)
    threading.Thread(target=_log_all, args=(read,), name="poison-jvm-output", daemon=True).start()
    os.dup2(write, _STDERR)
    os.close(write)
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        os.close(own)


def _log_all(descriptor: int) -> None:
    level = logging.INFO
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()
            if text:
                level = level_of(text, level)
                log.log(level, "%s", text)


def level_of(line: str, before: int = logging.INFO) -> int:
    """Return the level of a line; a line that begins with a blank, as those of a stack trace do, belongs to the one before it."""
    if _NOISE.search(line):
        return logging.DEBUG
    found = _LEVEL.match(line)
    if found is not None:
        return _LEVELS.get(found[1], logging.INFO)
    return before if line[0].isspace() or line.startswith("Caused by:") else logging.INFO
