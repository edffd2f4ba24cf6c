"""A driver of its own, which may be killed: receives once, and tells how it went."""

from __future__ import annotations

import json
import sys

from airflow_poison.core.errors import PoisonError
from tests.spark.places import place
from tests.spark.places.place import Where
from tests.spark.places.task import Task


def main(where: str, root: str, key: str) -> None:
    """Receive once."""
    place._set_place(Where.of(*json.loads(where)))
    try:
        said = Task(root).receive(key).to_dict()
    except PoisonError as error:
        said = {"error": type(error).__name__, "text": str(error)}
    sys.stdout.write(f"\n{json.dumps(said)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
