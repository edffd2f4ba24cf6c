"""Queues with poison of several kinds, on each store of the passes' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.given.passes import Handler, Queue, a_queue
from tests.unit.passes.conftest import at_point, store

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.values.message import Message

__all__ = ["at_point", "store"]


class Failing(Handler):
    """Fails as the body's JSON says: ``fails`` names the type and the text of the exception."""

    def __call__(self, message: Message) -> None:
        """Be called with a message."""
        self._write("call", message)
        body = message.json()
        if body.get("fails"):
            raise {"key": KeyError, "value": ValueError}[body["fails"]](body["says"])
        self._write("done", message)


def body(number: int, fails: str = "", says: str = "", **more: object) -> str:
    """A JSON body."""
    import json

    return json.dumps({"number": number, "fails": fails, "says": says, **more})


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    """An empty queue; what fails becomes poison at once."""
    return a_queue(store, tmp_path).having(handler=Failing(str(tmp_path / "calls")))


@pytest.fixture
def poisoned(queue: Queue) -> Queue:
    """A queue with nine poison messages, 1 to 9: 1 to 4 lack a key, 5 to 9 have a wrong value; the odd ones are of carrier VX."""
    texts = [
        body(n, *(("key", "delay") if n <= 4 else ("value", f"could not convert 'x{n}' at {n * 111}")), carrier="VX" if n % 2 else "AA", delay=n * 10)
        for n in range(1, 10)
    ]
    queue.sent(*texts, properties={"source": "test"}).receive("one")
    return queue
