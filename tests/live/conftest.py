"""One real Airflow for all tests here: scheduler, DAG processor, triggerer and API server on loopback, real Spark in its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live import spark_classes
from tests.live.live_airflow import LiveAirflow, live_airflow
from tools.airflow.home import free_port
from tools.airflow.services import running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """Return the Airflow of this test run; its folder stays among pytest's temporary ones, its processes do not."""
    java_options = spark_classes.options(request.config.cache.mkdir("spark-classes"))
    live = live_airflow(tmp_path_factory.mktemp("airflow"), free_port(), java_options)
    with running(live.services):
        live.until_ready()
        yield live
