"""A driver of its own, which may be killed: receives once, and tells how it went."""

from __future__ import annotations

import json
import sys

from airflow_poison.rules import policy_from_dict
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.errors import PoisonError
from tests.spark.places import place
from tests.spark.places.place import Where
from tests.spark.places.task import Task


def main(where: str, root: str, key: str) -> None:
    """Receive once, with the recorded policy."""
    place._set_place(Where.of(*json.loads(where)))
    try:
        policy = policy_from_dict(DeltaStore(root).open("orders").snapshot().control.policy)
        said = Task(root, policy).receive(key).to_dict()
    except PoisonError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    sys.stdout.write(f"\n{json.dumps(said)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
