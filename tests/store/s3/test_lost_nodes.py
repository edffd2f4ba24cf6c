"""Nodes that are killed with their disks: nothing is lost, and the message that does it is found and charged alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes import receive as passes
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.values import fault_points
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.schema import SubQueue
from tests.store.s3 import receiver

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison import Message
    from tests.store.s3.conftest import Bucket


@pytest.mark.long
@pytest.mark.parametrize(("innocents", "retries"), [(5, 1), pytest.param(50, 5, marks=pytest.mark.campaign)])
def test_a_message_that_takes_each_node_with_it_is_found_and_charged_alone(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, innocents: int, retries: int
) -> None:
    """Each try is on a new node. Six suspects come alone at once, 51 in twos first."""
    clock, calls = SystemClock(), tmp_path / "calls"
    monkeypatch.setenv(receiver.CALLS, str(calls))
    sender = declare(bucket.store("sender"), "orders", receiver.policy(retries), clock)
    bodies = [f"good {number}" for number in range(innocents)]
    bodies.insert(3, "kill")
    send(sender, messages_to_batches(bodies), key="all", clock=clock)

    ends = []
    for number in range(12):
        node = tmp_path / f"lost {number}"
        command = [sys.executable, "-m", receiver.__name__, f"s3://{bucket.name}/queues", str(node), json.dumps(bucket.options), "run", str(retries)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        ends.append(done.returncode)
        shutil.rmtree(node)  # with its journals
        if done.returncode == 0:
            break

    (poisoned,) = [row for file in sender.snapshot().files for row in sender.read(file).to_pylist()]
    assert poisoned["body"] == b"kill"
    assert poisoned["sub_queue"] == SubQueue.POISON
    called = Counter(calls.read_text().splitlines())
    assert ends == [-9] * called["kill"] + [0]
    assert called["kill"] == retries + 1
    assert set(called) == set(bodies)
    assert max(number for text, number in called.items() if text != "kill") <= 3, "of the first two losses each repeats a section at most"


def row_of(message: Message) -> dict[str, str | None]:
    return {"text": message.text}


@pytest.mark.parametrize("schema", ["text string", None], ids=["declared", "learned"])
def test_rows_of_deliveries_on_a_lost_node_land(bucket: Bucket, tmp_path: Path, schema: str | None) -> None:
    """The node is lost when all is delivered and nothing is sealed: nothing is delivered again, for the words of the section are objects."""
    clock, bodies, output = SystemClock(), [f"good {number}" for number in range(5)], str(tmp_path / "output")
    send(declare(bucket.store("sender"), "orders", receiver.policy(0), clock), messages_to_batches(bodies), key="all", clock=clock)

    def receive(node: str) -> None:
        table, outputs = bucket.queue(node), outputs_of(output, schema=schema)
        passes.ReceivePass(
            table=table, policy=receiver.policy(0), handler=f"{__name__}:row_of", engine=LocalEngine, clock=clock, outputs=outputs
        ).run("run")

    def dies(point: str) -> None:
        if point == "store.seal.before_listing":
            raise KeyboardInterrupt

    fault_points.install(dies)
    with pytest.raises(KeyboardInterrupt):
        receive("lost")
    fault_points.install(None)
    shutil.rmtree(tmp_path / "lost")
    receive("heir")
    assert {*DeltaTable(output).to_pyarrow_table()["text"].to_pylist()} == {*bodies}
    assert DeltaTable(output).to_pyarrow_table().num_rows == len(bodies)
