"""Messages of a pass: one whose body, properties or failure breaks what looks at it (handler, mask, error group) concerns no other one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.desk.queries import find, groups
from airflow_poison.desk.rules import declare_mask
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.browse import browse
from airflow_poison.passes.send import send
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.values.schema import SubQueue
from tests.given.passes import Queue, a_queue
from tests.unit.edges.conftest import POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.values.message import Message

CARD = "4111222233334444"


class Unsayable(Exception):  # noqa: N818  (a name of somebody else)
    def __str__(self) -> str:
        raise RuntimeError(CARD)

    __repr__ = __str__


class Endless(Exception):  # noqa: N818
    def __str__(self) -> str:
        return str(self)


class NoText(Exception):  # noqa: N818
    def __str__(self) -> Any:
        return 5  # noqa: PLE0307  (it is wrong on purpose)


def circle() -> Exception:
    error = ValueError(CARD)
    error.__cause__, error.__context__ = error, error
    return error


FAILURES: dict[str, Any] = {
    "a text that cannot be made": Unsayable,
    "a text without end": Endless,
    "a text that is none": NoText,
    "half of a surrogate": lambda: ValueError("\ud800" + CARD),
    "zero characters and what terminals obey": lambda: ValueError("\0\x1b[2J" + CARD),
    "many brackets": lambda: ValueError("([{<'\"" * 50_000 + CARD),
    "many digits": lambda: ValueError("7" * 200_000),
    "a cause that is itself": circle,
    "many causes": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(2_000)]),
    "a type with an odd name": lambda: type("\ud800 \n", (Exception,), {})(CARD),
    "a type without a module": lambda: type("NoModule", (Exception,), {"__module__": None})(CARD),
    "arguments that compare to nothing": lambda: KeyError(float("nan"), [[]], {}),
}
BODIES = {
    "deep JSON": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "no UTF-8": b"\xff\xfe{",
    "half of a surrogate": b'{"card": "\\ud800"}',
    "a name twice": b'{"card": "%s", "card": 5}' % CARD.encode(),
    "a number of many digits": b'{"card": ' + b"9" * 10_000 + b"}",
    "UTF-16": json.dumps({"card": CARD}).encode("utf-16"),
    "an empty body": b"",
    "a brace in a text": b'{"card": "}{", "x": "' + CARD.encode() + b'"}',
}
PROPERTIES: dict[str, dict[str, str]] = {
    "edits that are none": {"x.edits": "[{"},
    "names of columns": {"lookup_id": "5", "body": "x", "error": "y"},
    "an empty name": {"": "x"},
    "control characters": {"a\0\x1b": "\0\x1b[2J"},
    "a large value": {"x": "y" * 1_000_000},
}


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    made = a_queue(DeltaStore(str(tmp_path / "store"), durable=False), tmp_path, POLICY)
    declare_mask(made.table, made.clock, ["$.card"])
    return made


def received(queue: Queue, body: bytes = b"bad", properties: dict[str, str] | None = None, fail: Any = ValueError) -> str:
    """Receive a message among good and failing ones; return what people and tasks are shown of it without bodies."""
    bodies = [b'{"n": 1}', body, b'{"n": "fail"}', b'{"n": 4}']
    cells = [list((properties or {}).items()) if number == 1 else [] for number in range(4)]
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary()), "properties": pa.array(cells, pa.map_(pa.string(), pa.string()))})
    send(queue.table, [batch], key="send", clock=queue.clock)

    def handler(message: Message) -> None:
        if message.body == bodies[2]:
            raise KeyError("n")
        if message.body == body:
            raise fail()

    queue.receive(handler=handler, isolation="none")

    assert sorted(queue.rows()) == sorted(queue.rows(SubQueue.POISON)) == [2, 3]
    found = find(queue.table, Selection())
    assert found.total == 2
    by_error = groups(queue.table, Selection(), queue.clock).groups
    assert sum(group.messages for group in by_error) == 2
    told: list[object] = []
    assert send_alerts(queue.table, "me", {"notes": told.append}, queue.clock)
    return f"{found} {by_error} {browse(queue.table, [SubQueue.POISON], 10)} {told} {queue.rows(SubQueue.POISON)[2]['last_error']}"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_that_cannot_be_told_concerns_no_other_message(queue: Queue, failure: str) -> None:
    assert CARD not in received(queue, json.dumps({"card": CARD}).encode(), fail=FAILURES[failure])


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_cannot_be_shown_concerns_no_other_message(queue: Queue, body: str) -> None:
    received(queue, BODIES[body])


@pytest.mark.parametrize("properties", PROPERTIES)
def test_properties_that_cannot_be_told_concern_no_other_message(queue: Queue, properties: str) -> None:
    received(queue, properties=PROPERTIES[properties])
