"""A pass in a process of its own, as a task on a node: it may be killed by a message that it receives."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.passes.engines import SupervisedEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.values.clock import SystemClock

if TYPE_CHECKING:
    from airflow_poison import Message

TASK, CALLS = "POISON_TEST_TASK", "POISON_TEST_CALLS"


def land(message: Message) -> None:
    """Note the call; the message ``kill`` ends the whole task."""
    with Path(os.environ[CALLS]).open("a") as calls:
        calls.write(f"{message.text}\n")
    if message.text == "kill":
        os.kill(int(os.environ[TASK]), signal.SIGKILL)
        time.sleep(60)


def policy(retries: int) -> Msmq4:
    """Return the rules of the queue."""
    return Msmq4(receive_retry_count=retries, max_retry_cycles=0, receive_error_handling="Move")


def main(uri: str, node: str, options: str, key: str, retries: str) -> None:
    """Receive once."""
    os.environ[TASK] = str(os.getpid())
    table = BucketStore(uri, json.loads(options), node=Path(node)).open("orders")
    receiving = ReceivePass(
        table=table,
        policy=policy(int(retries)),
        handler="tests.store.s3.receiver:land",
        engine=SupervisedEngine,
        clock=SystemClock(),
        lease=timedelta(seconds=1),
        small_pass=1_000_000,
    )
    receiving.run(key)


if __name__ == "__main__":
    main(*sys.argv[1:])
