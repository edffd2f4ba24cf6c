"""Takes from a source until it is killed, with a pause at each fault point; says on its output that it takes. A process of its own.

With settings of Spark, as JSON, its executors read.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

from airflow_poison.passes.take import take
from airflow_poison.spark.send_stage import SendStage
from airflow_poison.spark.session import get_session
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.fault_points import install

SECONDS = 0.02
"""The longest pause."""


def main(store: str, queue: str, source: str, spark: str = "") -> None:
    """Take, as many at a time as chance says.

    :param store: its folder.
    :param source: a file with the pickled source.
    :param spark: settings of a local Spark; none: this process reads.
    """
    table, found = open_store(store).open(queue), pickle.loads(Path(source).read_bytes())
    install(lambda _point: time.sleep(random.uniform(0, SECONDS)))
    for number in count():
        key = f"{os.getpid()}-{time.time_ns()}"
        read = partial(SendStage.of_queue(table.folder, key).records, spark=partial(get_session, "local[2]", json.loads(spark))) if spark else None
        take(table, found, key=key, clock=SystemClock(), limit=random.choice([None, 3, 50]), read=read)
        if number == 0:
            sys.stdout.write("takes\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
