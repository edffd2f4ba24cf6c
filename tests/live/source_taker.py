"""Takes from a source until it is killed, with a pause at each fault point; says on its output that it takes. A process of its own."""

from __future__ import annotations

import os
import pickle
import random
import sys
import time
from itertools import count
from pathlib import Path

from airflow_poison.core.clock import SystemClock
from airflow_poison.core.fault_points import install
from airflow_poison.core.passes.take import take
from airflow_poison.core.store import open_store

SECONDS = 0.02
"""The longest pause."""


def main(store: str, queue: str, source: str) -> None:
    """Take, as many at a time as chance says.

    :param store: its folder.
    :param source: a file with the pickled source.
    """
    table, found = open_store(store).open(queue), pickle.loads(Path(source).read_bytes())
    install(lambda _point: time.sleep(random.uniform(0, SECONDS)))
    for number in count():
        take(table, found, key=f"{os.getpid()}-{time.time_ns()}", clock=SystemClock(), limit=random.choice([None, 3, 50]))
        if number == 0:
            sys.stdout.write("takes\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
