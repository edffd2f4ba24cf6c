"""The JVM's standard error as log records."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest

from airflow_poison.spark import session
from airflow_poison.spark.session import jvm_output_logged, level_of


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("26/11/21 19:13:11 ERROR Executor: Exception in task 0.0", logging.ERROR),
        ("26/11/21 19:13:11 WARN TaskSetManager: Lost task", logging.WARNING),
        ("26/11/21 19:13:11 INFO SparkContext: Running", logging.INFO),
        ("26/11/21 19:13:11 WARN NativeCodeLoader: Unable to load native-hadoop library", logging.DEBUG),
        ("WARNING: Using incubator modules: jdk.incubator.vector", logging.DEBUG),
        ("Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties", logging.DEBUG),
        ('Setting default log level to "WARN".', logging.DEBUG),
        ("something else", logging.INFO),
    ],
)
def test_a_line_has_the_level_that_it_says(line: str, level: int) -> None:
    assert level_of(line) == level


def test_a_stack_trace_has_the_level_of_what_it_belongs_to() -> None:
    assert level_of("\tat java.base/java.lang.Thread.run", logging.ERROR) == logging.ERROR
    assert level_of("Caused by: java.io.IOException", logging.ERROR) == logging.ERROR
    assert level_of("next", logging.ERROR) == logging.INFO


def test_a_process_started_in_the_block_is_logged_as_long_as_it_lives(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO, "airflow_poison.spark")
    script = "import sys; print('26/11/21 19:13:11 WARN X: early', file=sys.stderr, flush=True); sys.stdin.read(); print('late', file=sys.stderr)"
    with jvm_output_logged():
        child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    sys.stderr.write("mine\n")
    child.communicate()
    deadline = time.monotonic() + 20
    while len(caplog.records) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "26/11/21 19:13:11 WARN X: early"),
        (logging.INFO, "late"),
    ]
    assert capfd.readouterr().err == "mine\n"


def test_a_start_that_takes_long_says_so_once_also_where_records_are_written_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a handler of this process writes there would be logged again, and again."""
    caplog.set_level(logging.INFO, "airflow_poison.spark")
    monkeypatch.setattr(session, "SAID_SECONDS", 0.2)
    with open(2, "w", closefd=False) as standard_error:
        handler = logging.StreamHandler(standard_error)
        session.log.addHandler(handler)
        with jvm_output_logged():
            time.sleep(0.5)
        session.log.removeHandler(handler)

    said = [record.getMessage() for record in caplog.records]
    assert said == ["Spark is still starting, after 0 s"] * 2
    assert capfd.readouterr().err.splitlines() == said
