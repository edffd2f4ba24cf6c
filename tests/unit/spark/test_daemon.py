"""The path of Spark's Python workers: without archives of which a package of the same installation has all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from airflow_poison.spark.daemon import without_archives
from airflow_poison.spark.session import _of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """A folder of packages with a Spark and its archives."""
    for name in ("pyspark/python/lib", "pyspark/jars", "py4j"):
        (tmp_path / "packages" / name).mkdir(parents=True)
    for name in (
        "pyspark/__init__.py",
        "py4j/__init__.py",
        "pyspark/python/lib/pyspark.zip",
        "pyspark/python/lib/py4j-0.10-src.zip",
        "pyspark/jars/core.jar",
    ):
        (tmp_path / "packages" / name).write_bytes(b"")
    yield tmp_path / "packages"
    sys.path_importer_cache.pop(str(tmp_path / "packages"), None)


def archives(of: Path) -> list[str]:
    return [str(of / name) for name in ("pyspark/python/lib/pyspark.zip", "pyspark/python/lib/py4j-0.10-src.zip", "pyspark/jars/core.jar")]


def test_archives_of_an_installed_spark_are_left_out_and_those_of_a_user_stay(installed: Path) -> None:
    mine = ["/mine/shop.zip", "/mine"]

    assert without_archives([*archives(installed), *mine, str(installed)]) == [*mine, str(installed)]


def test_archives_of_another_spark_stay(installed: Path, tmp_path: Path) -> None:
    path = [*archives(tmp_path / "opt" / "spark"), str(installed)]

    assert without_archives(path) == path


def test_where_spark_is_in_archives_alone_they_stay(tmp_path: Path) -> None:
    path = [*archives(tmp_path), str(tmp_path / "nothing")]

    assert without_archives(path) == path


def test_only_workers_of_this_python_on_this_machine_are_forked_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert _of_workers("local[2]") == {"spark.python.daemon.module": "airflow_poison.spark.daemon"}
    assert _of_workers("spark://host:7077") == {}
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert _of_workers("local[2]") == {}
