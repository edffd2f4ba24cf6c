"""Workers of Celery that share nothing but the object store and the metadata database: one is lost with its disk, and another one goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3  # type: ignore[import-untyped]
import pytest

from airflow_poison.store import open_store
from airflow_poison.values.schema import SubQueue
from tests.live import celery_parts
from tests.live.celery_parts import Worker
from tests.live.live_airflow import LiveAirflow, settings_of, write_passwords
from tests.live.statsd_listener import Listener
from tools.airflow.home import Home, free_port
from tools.airflow.services import WITH_TRIGGERER, Services, running
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Iterator

DAG_FILE = Path(__file__).parent / "dags" / "two_nodes.py"
BUCKET = "shared"
SECTION = 4_096
"""So many messages of a task are a section of its journal: what is delivered again after the loss of a node."""

pytestmark = pytest.mark.skipif(
    not all(map(celery_parts.program, ("redis-server", "initdb", "postgres"))), reason="install redis-server and postgresql on this machine"
)


class TwoNodes:
    """An Airflow with two workers, and the options of the object store."""

    def __init__(self, airflow: LiveAirflow, workers: tuple[Worker, Worker], options: dict[str, str]) -> None:
        self.airflow, self.workers, self.options = airflow, workers, options

    def calls(self, worker: Worker) -> list[str]:
        """Return for which messages the handler was called there, in order."""
        file = worker.home / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def nodes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNodes]:
    packages = request.config.cache.mkdir("celery-packages")
    celery_parts.install(packages)
    metrics, home, dags = Listener(), Home(tmp_path / "home"), tmp_path / "dags"
    dags.mkdir()
    home.logs.mkdir(parents=True)
    write_passwords(home)
    with contextlib.ExitStack() as stack:
        s3, redis, database = (stack.enter_context(each()) for each in (server.running, celery_parts.redis, celery_parts.postgres))
        endpoint, port = f"http://{server.LOOPBACK}:{s3}", free_port()
        keys = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_REGION": "us-east-1"}
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tester"))
        (tmp_path / "tester").mkdir()
        boto3.client("s3", endpoint_url=endpoint, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1").create_bucket(
            Bucket=BUCKET
        )
        lake = {
            "conn_type": "aws",
            "login": keys["AWS_ACCESS_KEY_ID"],
            "password": keys["AWS_SECRET_ACCESS_KEY"],
            "extra": {"region_name": "us-east-1", "endpoint_url": endpoint},
        }
        poison = {"conn_type": "poison", "extra": {"store": f"s3://{BUCKET}/queues", "spark": "auto", "aws_conn_id": "lake"}}
        environment = {
            **settings_of(home, port, dags, tmp_path, metrics, java_options=""),
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__BROKER_URL": f"redis://{server.LOOPBACK}:{redis}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql+psycopg2://{database}",
            "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "False",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW_CONN_POISON_DEFAULT": json.dumps(poison),
            "AIRFLOW_CONN_LAKE": json.dumps(lake),
        }
        environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(packages)])
        services = Services(home, environment, port, WITH_TRIGGERER)
        services.prepare()
        live = LiveAirflow(home.path, f"http://{server.LOOPBACK}:{port}", dags, tmp_path, metrics, services)
        stack.enter_context(metrics.listening())
        stack.enter_context(running(services))
        live.until_ready()
        live.dag(DAG_FILE)
        workers = (Worker("one", tmp_path / "one", environment), Worker("two", tmp_path / "two", environment))
        for worker in workers:
            stack.callback(worker.end)
            worker.start(dags)
        yield TwoNodes(live, workers, {"AWS_ENDPOINT_URL": endpoint, **keys})


def test_a_worker_that_is_lost_with_its_disk_in_mid_pass_costs_no_message_and_charges_nobody(nodes: TwoNodes) -> None:
    airflow = nodes.airflow
    run = airflow.trigger("two_nodes")
    airflow.until(lambda: any("4500" in nodes.calls(worker) for worker in nodes.workers), "a handler waits in mid-pass", run=run)
    lost, other = sorted(nodes.workers, key=lambda worker: "4500" not in nodes.calls(worker))

    lost.lose()
    (other.home / "go on").touch()
    airflow.wait(run)

    first, second = (airflow.result(run, task_id) for task_id in ("first", "second"))
    assert _counts(first) == {"received": 5_000, "settled": 4_997, "parked": 3, "poisoned": 0, "crashes": 0}
    assert airflow.result(run, "return")["returned"] == 3
    assert _counts(second) == {"received": 3, "settled": 0, "parked": 0, "poisoned": 3, "crashes": 0}
    table = open_store(f"s3://{BUCKET}/queues", nodes.options).open("numbers")
    snapshot = table.snapshot()
    rows = [row for file in snapshot.files for row in table.read(file).to_pylist()]
    assert {row["sub_queue"] for row in rows} == {SubQueue.POISON}
    assert {row["body"].decode(): row["crash_count"] for row in rows} == {"100": 0, "4400": 0, "4900": 0}
    assert snapshot.claims == ()
    before, after = Counter(nodes.calls(lost)), Counter(nodes.calls(other))
    assert set(after) == {str(number) for number in range(SECTION + 1, 5_001)} | {"100"}, "a section that was done is not delivered again"
    assert {text for text, number in (before + after).items() if number > 2} == {"100", "4400", "4900"}
    assert (before["100"], after["100"]) == (2, 2), "two deliveries in each of two cycles, as if nothing had happened"
    assert after["4400"] == after["4900"] == 4


def _counts(result: dict[str, Any]) -> dict[str, int]:
    return {name: result[name] for name in ("received", "settled", "parked", "poisoned", "crashes")}
