"""The Spark session of a pass: found or started with what the receive stage needs, after checks that give clear errors."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, cast

from airflow_poison.values.errors import JavaError, SettingError, SparkConnectError, SparkDistributionError, SparkJobError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Session


MINIMUM_JAVA = 17

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.files.openCostInBytes": "0",  # many small files make few tasks
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.scheduler.mode": "FAIR",  # units of a transformation share the cores; all else is in one pool, as ever
    "spark.speculation": "false",  # a second attempt would wait for the first: only one delivers
    "spark.sql.shuffle.partitions": "8",
    "spark.python.task.killTimeout": "500ms",  # after a cancelled job: a task that is killed has five seconds to give its claim up
    "spark.log.level": "ERROR",
}


def get_session(master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running Spark session, or start one.

    :param master: where Spark runs, for example ``local[*]``, ``spark://host:7077``, or ``sc://host:15002`` for a Spark Connect server.
    :param conf: further settings; they win over the product's own. A session of a server takes only those that are a session's.
    Raises JavaError and SparkDistributionError before a JVM is started, SparkConnectError when no server answers, SparkJobError when no master does.
    """
    check_distributions(classic=not master.startswith(SCHEME))
    if master.startswith(SCHEME):
        settings = {key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.")}
        return connect_session(master, {**settings, **(conf or {})})
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    from airflow_poison.spark.jobs import why

    running = running_session()
    if running is not None:
        return running
    if master.startswith("local"):
        check_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("airflow-poison")
    for key, value in {**SETTINGS, **_of_workers(master), **(conf or {})}.items():
        builder = builder.config(key, value)
    began = time.monotonic()
    log.info("Starting Spark: %s", master)
    with jvm_output_logged():
        try:
            spark = builder.getOrCreate()
        except Py4JError as error:
            raise SparkJobError(
                f"Spark cannot be started on {master!r}: {why(error)}\nCheck that the master is the right one and answers; nothing was claimed."
            ) from error
    log.info("Spark %s has started in %.1f s", spark.version, time.monotonic() - began)
    return spark


def _of_workers(master: str) -> dict[str, str]:
    """Return settings of Python workers that are forked on this machine by a Python that has this package installed."""
    try:
        version("airflow-poison")
    except PackageNotFoundError:  # it is on this process's path alone
        return {}
    ours = master.startswith("local") and os.environ["PYSPARK_PYTHON"] == sys.executable
    return {"spark.python.daemon.module": "airflow_poison.spark.daemon"} if ours else {}


def running_session() -> SparkSession | None:
    """Return the classic Spark session of this process, whichever thread has started it; None when there is none.

    Raises SparkJobError where its JVM has ended.
    """
    if _classic_context() is None:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:
        return None
    except ConnectionError as error:
        raise SparkJobError(_JVM_GONE) from error
    check_running(spark)
    return spark


_JVM_GONE = (
    "Spark has ended in this process: its JVM is gone, most often for lack of memory (spark.driver.memory). Nothing was committed. Run it again in a "
    "new process: no other JVM can be started in this one."
)


def check_running(spark: SparkSession) -> None:
    """Raise SparkJobError for a classic session that has ended."""
    from py4j.protocol import Py4JError

    try:
        context = spark.sparkContext._jsc  # noqa: SLF001  (there is no public way)
        stopped = context is None or context.sc().isStopped()
    except (ConnectionError, Py4JError) as error:
        raise SparkJobError(_JVM_GONE) from error
    if stopped:
        raise SparkJobError(
            "This Spark session was stopped. Nothing was committed. Make a new one, SparkSession.builder.getOrCreate(), and run it again."
        )


def _classic_context() -> object:
    core = sys.modules.get("pyspark.core.context")
    return None if core is None else core.SparkContext._active_spark_context  # noqa: SLF001  (there is no public way)


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

SAID_SECONDS = 10.0
"""Between two lines about a Spark that is starting."""
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

    The JVM is given a pipe instead of this process's own; so is, in this block, whatever else of this process writes there. A block that takes long
    says so.
    """
    py4j = logging.getLogger("py4j")
    if py4j.level == logging.NOTSET:  # it tells of each of its connections that is closed
        py4j.setLevel(logging.WARNING)
    read, write = os.pipe2(os.O_CLOEXEC)
    own = os.dup(_STDERR)
    ended, began = threading.Event(), time.monotonic()
    threading.Thread(target=_log_all, args=(read, os.dup(own), ended), name="poison-jvm-output", daemon=True).start()
    os.dup2(write, _STDERR)
    os.close(write)

    def say() -> None:
        while not ended.wait(SAID_SECONDS):
            os.write(_STDERR, f"Spark is still starting, after {time.monotonic() - began:.0f} s\n".encode())

    saying = threading.Thread(target=say, name="poison-spark-start", daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()
        os.dup2(own, _STDERR)
        os.close(own)


def _log_all(descriptor: int, own: int, ended: threading.Event) -> None:
    """Log what comes; pass on to this process's own standard error what one of its logging handlers has written there of it."""
    level, logged = logging.INFO, list[str]()
    with open(descriptor, encoding="utf-8", errors="replace") as lines, open(own, "w", encoding="utf-8") as back:
        for line in lines:
            text = line.rstrip()
            if mine := next((each for each in logged if text.endswith(each)), None):
                logged.remove(mine)
                print(text, file=back, flush=True)
            elif text:
                level = level_of(text, level)
                if not ended.is_set():
                    logged.append(text)
                log.log(level, "%s", text)


def level_of(line: str, before: int = logging.INFO) -> int:
    """Return the level of a line; a line that begins with a blank, as those of a stack trace do, belongs to the one before it."""
    if _NOISE.search(line):
        return logging.DEBUG
    found = _LEVEL.match(line)
    if found is not None:
        return _LEVELS.get(found[1], logging.INFO)
    return before if line[0].isspace() or line.startswith("Caused by:") else logging.INFO


# Sessions of Spark Connect: a client of a server elsewhere; no JVM is started here.


SCHEME = "sc://"
OURS = ("spark.submit.pyFiles", "spark.default.parallelism")
"""Settings that a session of Spark Connect does not have, and that mean the same here: files to ship, and how many tasks a pass has."""
_FIRST_RETRIES, _RETRIES = 4, 6
"""How often a call is repeated while the server cannot be reached: for about 4 seconds when a session begins, for a minute later."""
_GONE = ("INVALID_HANDLE.SESSION_", "SESSION_NOT_FOUND", "SESSION_CLOSED", "SESSION_CHANGED", "NO_ACTIVE_SESSION")
_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark sets this variable for itself."""
_lock = threading.Lock()
_sessions: dict[str, Session] = {}
"""By address."""
_ended: list[Session] = []
"""Kept for ever: where one is collected while another begins a thread, PySpark waits for itself (``__del__`` takes a lock that is held)."""
_settings: dict[str, dict[str, str]] = {}
"""What has been set, by the session's id."""


def connect_session(url: str, conf: Mapping[str, str]) -> SparkSession:
    """Return this process's session with a server, or begin one.

    :param url: ``sc://host:port``, with parameters as Spark writes them (``sc://host:443/;use_ssl=true;token=…``).
    :param conf: settings of the session; what only a server can be given is refused.
    Raises SparkConnectError when no server answers, SettingError.
    """
    with _lock:
        session = _sessions.get(url)
        if session is None or session.is_stopped or not _lives(session):
            session = _sessions[url] = _begin(url)
        _set(session, conf)
    return cast("SparkSession", session)


def connected_sessions() -> list[Session]:
    """Return the sessions of this process that have not been stopped."""
    return [session for session in list(_sessions.values()) if not session.is_stopped]


def leave() -> None:
    """End the sessions of this process: the server forgets what was shipped to them, and ends what they run."""
    with _lock:
        while _sessions:
            _, session = _sessions.popitem()
            _ended.append(session)
            session.stop()
        os.environ.pop(_MODE, None)


def without_secrets(url: str) -> str:
    """Return a server's address without its parameters: a token may be among them."""
    return url.partition("/;")[0]


def why(error: Exception) -> str:
    """Return what a call to a server failed with, in words and without the server's stack trace."""
    text = str(error).partition("\n\nJVM stacktrace:")[0].strip()
    condition = str(getattr(error, "getCondition", lambda: None)() or "")
    if any(name in condition or name in text for name in _GONE):
        return f"the session with the Spark Connect server has ended: the server was started again, or has closed it ({condition or _first(text)})"
    if _unreachable(error):
        return f"the Spark Connect server cannot be reached ({_first(text)})"
    if condition == "OPERATION_CANCELED":
        return "the job was cancelled on the Spark Connect server"
    return text or type(error).__name__


def is_of_connect(error: Exception) -> bool:
    """Whether a call to a server raised this."""
    return type(error).__module__.startswith(("pyspark.errors.exceptions.connect", "grpc"))


def _begin(url: str) -> Session:
    if _classic_context() is not None:
        raise SettingError(
            "spark", "sc://…", "one kind of Spark in a process: this one has a classic session, whose master is local, spark:// or yarn"
        )
    import pyspark
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    where, session = without_secrets(url), None
    try:
        session = cast("Session", SparkSession.builder.remote(url).create())
        session.client.set_retry_policies([DefaultPolicy(max_retries=_FIRST_RETRIES)])
        with warnings.catch_warnings(action="ignore"):  # RETRIES_EXCEEDED, which the error tells, too
            there = session.version
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    except PySparkException as error:
        if session is not None:
            _end(session)
        if not connected_sessions():
            os.environ.pop(_MODE, None)  # or no classic session could be had in this process, nor in those that it starts
        raise SparkConnectError(
            f"No session with the Spark Connect server {where}: {why(error)}. Check host, port, token and use_ssl of the connection, and that the "
            "server runs (start-connect-server.sh; its port is 15002 unless it was set)."
        ) from error
    if there.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise SparkConnectError(
            f"The Spark Connect server {where} has Spark {there}, this environment pyspark {pyspark.__version__}: Python functions travel only "
            "between equal minor versions. Install the server's version here, or run a server of this one."
        )
    return session


def _lives(session: Session) -> bool:
    """Say whether the server still knows a session; let go of one that it does not."""
    from pyspark.errors import PySparkException

    try:
        return bool(session.conf.get("spark.sql.session.timeZone"))
    except PySparkException:
        _end(session)
        return False


def _end(session: Session) -> None:
    """Let go of a session without a word to its server, which does not know it or cannot be reached."""
    _ended.append(session)
    session.release_session_on_close = False
    session.stop()


def _set(session: Session, conf: Mapping[str, str]) -> None:
    known = _settings.setdefault(session.session_id, {})
    for name, value in conf.items():
        if name in OURS or known.get(name) == value:
            continue
        if not session.conf.isModifiable(name):
            raise SettingError(f"spark_conf[{name!r}]", value, "settings of a session; the Spark Connect server itself must be started with this one")
        session.conf.set(name, value)
        known[name] = value


def _unreachable(error: Exception) -> bool:
    code = getattr(error, "_grpc_status_code", None) or getattr(error, "code", lambda: None)()
    return getattr(code, "name", "") in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def _first(text: str) -> str:
    """Return the line that says what was wrong, of a text of grpc."""
    for line in text.splitlines():
        if "details = " in line:
            return line.partition("details = ")[2].strip(' "')
    return next(iter(text.splitlines()), "")
