"""Processes that tests kill: ``take`` a topic into a queue, or ``send`` a queue's poison to a topic, until nothing is left."""

from __future__ import annotations

import json
import sys
import time

from airflow_poison.passes.take import take
from airflow_poison.passes.to_kafka import send_to_kafka
from airflow_poison.sources.kafka import Kafka
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock


def main(what: str, root: str, settings: str, name: str, key: str) -> None:
    """Do it."""
    table, kafka = open_store(root).open("orders"), Kafka("orders" if what == "take" else "letters", json.loads(settings))
    if what == "take":
        number = 0
        while True:
            number += 1
            if not take(table, kafka, key=f"{name}-{key}-{number}", clock=SystemClock(), limit=400).sent:
                time.sleep(0.05)
    ids = [number for file in table.snapshot().files for number in table.read(file, ["lookup_id"])["lookup_id"].to_pylist()]
    while ids:
        some, ids = ids[:100], ids[100:]
        send_to_kafka(table, [number for number in some if number is not None], kafka, SystemClock())
    send_to_kafka(table, [], kafka, SystemClock())


if __name__ == "__main__":
    main(*sys.argv[1:])
