"""Sessions of Spark Connect: a client of a server elsewhere; no JVM is started here."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, cast

from airflow_poison.core.errors import SettingError, SparkConnectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Session

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
    :param conf: settings of the session; what only a server can be told is refused.
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
    _refuse_classic()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    where, session = without_secrets(url), None
    try:
        session = cast("Session", SparkSession.builder.remote(url).create())
        session.client.set_retry_policies([DefaultPolicy(max_retries=_FIRST_RETRIES)])
        with warnings.catch_warnings(action="ignore"):  # RETRIES_EXCEEDED, which the error tells, too
            version = session.version
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
    _check_version(where, version)
    return session


def _refuse_classic() -> None:
    core = sys.modules.get("pyspark.core.context")
    if core is not None and core.SparkContext._active_spark_context is not None:  # noqa: SLF001  (there is no public way)
        raise SettingError(
            "spark", "sc://…", "one kind of Spark in a process: this one has a classic session, whose master is local, spark:// or yarn"
        )


def _check_version(where: str, version: str) -> None:
    import pyspark

    if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        raise SparkConnectError(
            f"The Spark Connect server {where} has Spark {version}, this environment pyspark {pyspark.__version__}: Python functions travel only "
            "between equal minor versions. Install the server's version here, or run a server of this one."
        )


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
