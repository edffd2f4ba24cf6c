"""What is checked before a JVM is started."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark import session
from airflow_poison.spark.jobs import spark_errors
from airflow_poison.values.errors import JavaError, SparkDistributionError

if TYPE_CHECKING:
    from pathlib import Path


def a_java(folder: Path, version: str) -> None:
    """Make a program that introduces itself as a Java of some version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize("version", ["17.0.15", "21", "17"])
def test_java_17_and_newer_will_do(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    session.check_java()


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_392", "8")])
def test_an_older_java_is_named_with_what_is_needed(version: str, major: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=rf"needs Java 17 or newer; JAVA_HOME=.* has Java {major}\. Install"):
        session.check_java()


def test_no_java_at_all_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(JavaError, match="none was found through PATH"):
        session.check_java()


def test_the_installed_distributions_fit_together() -> None:
    session.check_distributions()


def test_mixed_distributions_are_refused_with_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version
    monkeypatch.setattr(session, "version", lambda name: "4.2.0" if name == "pyspark-client" else installed(name))

    with pytest.raises(SparkDistributionError, match=r"pyspark 4\.1\.3, pyspark-client 4\.2\.0.*--force-reinstall .*pyspark==4\.2\.0 pyspark-cl"):
        session.check_distributions()


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ({}, "Neither pyspark nor pyspark-client is installed"),
        ({"pyspark": "4.1.3"}, r"pyspark 4\.1\.3 cannot be imported .*no pyspark.*--no-deps pyspark==4\.1\.3\."),
        ({"pyspark": "4.1.4", "pyspark-client": "4.1.3"}, r"cannot be imported .*--no-deps pyspark==4\.1\.3 pyspark-client==4\.1\.3\."),
        ({"pyspark-client": "4.1.3"}, r"only connects to a Spark Connect server.*pip install pyspark==4\.1\.3"),
    ],
)
def test_a_spark_that_cannot_be_imported_is_told_as_that(installed: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    def missing(*, classic: bool) -> tuple[str, str]:
        raise ModuleNotFoundError(f"no pyspark, {classic=}")

    monkeypatch.setattr(session, "version", version)
    monkeypatch.setattr(session, "_imported", missing)

    with pytest.raises(SparkDistributionError, match=says):
        session.check_distributions()


def test_a_hint_names_no_version_that_only_pyspark_has_and_nothing_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every release of pyspark has one of pyspark-client: there is no pyspark-client 4.1.4."""
    monkeypatch.setattr(session, "version", {"pyspark": "4.1.4", "pyspark-client": "4.1.3"}.__getitem__)
    with pytest.raises(SparkDistributionError) as raised:
        session.check_distributions()
    assert "pyspark-client==4.1.4" not in str(raised.value)

    def only_pyspark(name: str) -> str:
        if name != "pyspark":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.1.2"

    monkeypatch.setattr(session, "version", only_pyspark)
    with pytest.raises(SparkDistributionError, match=r"4\.1\.3 is imported from .*pyspark.*PYTHONPATH") as raised:
        session.check_distributions()
    assert "pyspark-client" not in str(raised.value)


def test_a_client_of_spark_connect_needs_no_py4j_to_see_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import PySparkException

    assert [error.__name__ for error in spark_errors()] == ["PySparkException", "Py4JError"]
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)
    assert spark_errors() == (PySparkException,)
