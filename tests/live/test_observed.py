"""What others see of tasks in a real Airflow: metrics that a StatsD server gets, and OpenLineage events that are written to a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.live_airflow import LiveAirflow

Datasets = list[tuple[str, str]]

OURS = "poison://poison_default"

OBSERVED = """
import os

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG

from airflow_poison import Msmq4
from airflow_poison.operators.receive import QueueReceiveOperator
from airflow_poison.operators.send import QueueSendOperator


def refuse_bad(message):
    if message.text == "bad":
        raise ValueError("no such order")


def policy(ends_as):
    return Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling=ends_as)


with DAG("observed", schedule=None) as dag:
    for queue, ends_as in (("observed", "Reject"), ("observed-halted", "Fault")):
        lines = {"path": os.environ["LINES"], "format": "text", "body": "value"} if ends_as == "Reject" else {"messages": ["bad", "behind it"]}
        send = QueueSendOperator(task_id=f"send-{queue}", queue_name=queue, policy=policy(ends_as), **lines)
        send >> QueueReceiveOperator(task_id=f"receive-{queue}", queue_name=queue, handler=refuse_bad)

enable_lineage(dag)
"""


@pytest.fixture(scope="module")
def lines(airflow: LiveAirflow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of lines that were sent to a queue and received; to another queue went messages of which the first has halted it."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "lines.txt").write_text("good\nbad\nfine\n")
    dag_id = airflow.dag(OBSERVED, environment={"LINES": str(folder)})
    run = airflow.wait(airflow.trigger(dag_id), until="failed")
    assert airflow.tasks(run) == {
        "send-observed": "success",
        "receive-observed": "success",
        "send-observed-halted": "success",
        "receive-observed-halted": "failed",
    }
    airflow.until(lambda: len(ended(airflow)) >= len(airflow.tasks(run)), "the end of each task is told", run=run)  # Airflow tells it afterwards
    return folder


def ended(airflow: LiveAirflow) -> list[dict[str, Any]]:
    """Return the OpenLineage events that tell the end of a task."""
    return [event for event in airflow.lineage() if event["job"]["name"].startswith("observed.") and event["eventType"] != "START"]


def test_a_statsd_server_gets_what_each_task_did_once_and_how_its_queue_is(airflow: LiveAirflow, lines: Path) -> None:
    heard = airflow.metrics.heard("observed")
    [seconds] = heard.pop("pass_duration")
    ages = {name: heard.pop(name) for name in list(heard) if name.startswith("oldest_age.")}
    others = [heard.pop(name) for name in list(heard) if name.startswith("depth.") and name != "depth.main"]

    assert heard == {
        "sent": ["3|c"],
        "received": ["3|c"],
        "settled": ["2|c"],
        "rejected": ["1|c"],
        "deliveries": ["4|c"],
        "rollbacks": ["2|c"],
        "depth.main": ["3|g", "0|g"],
        "enabled": ["1|g", "1|g"],
    }
    assert others == [["0|g", "0|g"]] * (len(SubQueue) - 1)
    assert re.fullmatch(r"\d+\.\d+\|ms", seconds)
    assert {name: float(values[-1].removesuffix("|g")) for name, values in ages.items()} == dict.fromkeys(ages, 0)


def test_a_statsd_server_gets_that_a_queue_was_halted(airflow: LiveAirflow, lines: Path) -> None:
    heard = airflow.metrics.heard("observed-halted")
    assert {name: heard[name] for name in ("sent", "halted", "enabled", "depth.main")} == {
        "sent": ["2|c"],
        "halted": ["1|c"],
        "enabled": ["1|g", "0|g"],
        "depth.main": ["2|g", "2|g"],
    }


@pytest.mark.parametrize(
    ("task_id", "how", "told"),
    [
        ("send-observed", "COMPLETE", ([("file", "LINES")], [(OURS, "observed")])),
        ("receive-observed", "COMPLETE", ([(OURS, "observed")], [(OURS, "observed.dead-letter")])),
        ("send-observed-halted", "COMPLETE", ([], [(OURS, "observed-halted")])),
        ("receive-observed-halted", "FAIL", ([(OURS, "observed-halted")], [])),
    ],
)
def test_openlineage_is_told_what_each_task_read_and_wrote(
    airflow: LiveAirflow, lines: Path, task_id: str, how: str, told: tuple[Datasets, Datasets]
) -> None:
    events = [event for event in airflow.lineage() if event["job"]["name"] == f"observed.{task_id}"]
    assert sorted(event["eventType"] for event in events) == sorted(["START", how])
    [end] = [event for event in events if event["eventType"] == how]
    inputs, outputs = told
    assert datasets(end["inputs"]) == [(namespace, str(lines) if name == "LINES" else name) for namespace, name in inputs]
    assert datasets(end["outputs"]) == outputs


def test_openlineage_is_told_where_the_table_of_a_queue_lies(airflow: LiveAirflow, lines: Path) -> None:
    [end] = [event for event in airflow.lineage() if (event["job"]["name"], event["eventType"]) == ("observed.send-observed", "COMPLETE")]
    [table] = end["outputs"][0]["facets"]["symlinks"]["identifiers"]
    assert (table["namespace"], table["name"]) == ("file", airflow.store.open("observed").uri)


def datasets(found: list[dict[str, Any]]) -> Datasets:
    return [(each["namespace"], each["name"]) for each in found]
