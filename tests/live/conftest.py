"""One real Airflow for all tests here: scheduler, DAG processor, triggerer and API server on loopback, real Spark in its tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live import spark_classes
from tests.live.beside import run_all
from tests.live.live_airflow import PATIENCE, LiveAirflow, live_airflow
from tests.live.statsd_listener import Listener
from tools.airflow.home import free_port
from tools.airflow.services import running
from tools.servers import kafka, s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tools.servers.kafka import Broker

MOST_SECONDS = 1_800 * PATIENCE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time that all those take which run beside each other: the first of them waits for them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(MOST_SECONDS))


@pytest.fixture(scope="session")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAirflow]:
    """Return the Airflow of this test run; its folder stays among pytest's temporary ones, its processes do not."""
    java_options = spark_classes.options(request.config.cache.mkdir("spark-classes"))
    metrics = Listener()
    live = live_airflow(tmp_path_factory.mktemp("airflow"), free_port(), metrics, java_options)
    with metrics.listening(), running(live.services):
        live.until_ready()
        yield live


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a Kafka broker of the tests of one file."""
    with kafka.running(tmp_path_factory.mktemp("kafka")) as found:
        yield found


@pytest.fixture(scope="session")
def ended(request: pytest.FixtureRequest, airflow: LiveAirflow, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[None]]:
    """How the tests that run beside each other ended, by their ids."""
    return run_all(request.session.items, airflow, lambda: tmp_path_factory.mktemp("beside"))


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, str]]:
    """Return the options of a store on an S3 server."""
    with s3.running() as port:
        yield s3.options(f"http://{s3.LOOPBACK}:{port}")
