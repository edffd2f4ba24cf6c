"""One Spark session for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.core.spark.session import get_session
from tests.spark.drivers import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = get_session("local[2]", SMALL)
    yield session
    session.stop()
