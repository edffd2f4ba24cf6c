"""What is sent is what stands in the queue, what a handler gets, what is found, edited, undone, redriven, exported and landed: byte for byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_poison.desk import sql
from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, undo
from airflow_poison.desk.plans import plan, record
from airflow_poison.desk.queries import query
from airflow_poison.desk.selection import Selection
from airflow_poison.outputs.output import outputs_of
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.json_text import JsonError, Number, Pairs, decoded, tree, written
from airflow_poison.values.schema import SubQueue
from tests.given.examples import examples
from tests.given.passes import LEASE, NO_RETRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message

NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).map(Number)
JSON = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(st.text(max_size=4), inner), max_size=4).map(Pairs),
    max_leaves=10,
)
OBJECTS = st.lists(st.tuples(st.text(max_size=4), JSON), max_size=4).map(Pairs).map(lambda pairs: written(pairs).encode())
BODIES = st.lists(OBJECTS | JSON.map(lambda value: written(value).encode()) | st.binary(max_size=40), min_size=1, max_size=6)
HARD = [
    b'{"amount": 12345678901234567.89, "rate": 1.10, "huge": 1e400, "a": 1, "a": 2}',
    b'{"t": "\\ud83d"}',
    b'\xef\xbb\xbf{"a": 1}',
    b'{"a": "caf\xe9"}',
    b'{"NaN": null}',
    b"\x00",
    b"",
    b"[" * 5_000 + b"]" * 5_000,
]
FIELD = "poison edits this"
PATCH = PlanAction(verb=Verb.EDIT, patch={FIELD: 1})


def rows(table: QueueTable) -> list[dict[str, Any]]:
    found = [row for file in table.snapshot().files for row in table.read(file).to_pylist()]
    return sorted(found, key=lambda row: int(row["lookup_id"]))


def bodies_in(table: QueueTable) -> list[bytes]:
    return [row["body"] for row in rows(table)]


SEEN: list[bytes] = []


def fail(message: Message) -> None:
    SEEN.append(message.body)
    raise ValueError(repr(message.body)[:100])


def land(message: Message) -> dict[str, Any]:
    SEEN.append(message.body)
    return {"id": message.lookup_id, "body": message.body}


def is_patchable(body: bytes) -> bool:
    try:
        tree(body)
        decoded(body)
    except JsonError:
        return False
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", body)
    return all(word not in outside for word in (b"NaN", b"Infinity"))


def done(table: QueueTable, clock: VirtualClock, action: PlanAction, store: MemoryStore) -> str:
    made = plan(table, Selection(sub_queue=SubQueue.POISON), action, clock)
    plan_id = record(table, made, clock, who="shell:ann@here")
    assert apply(table, plan_id, clock, store=store, wait=lambda _seconds: None).state == "done"
    return plan_id


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(bodies=BODIES)
@example(bodies=HARD)
def test_bytes_are_the_same_at_each_station(bodies: Sequence[bytes]) -> None:
    store, clock = MemoryStore(), VirtualClock()
    table = declare(store, "orders", NO_RETRY, clock)
    landed: list[pa.Table] = []
    SEEN.clear()

    def a_pass(handler: str, **more: Any) -> ReceivePass:
        named = f"{__name__}:{handler}"  # by name: a function that travels would append to a copy of the list
        return ReceivePass(
            table=table, policy=NO_RETRY, handler=named, engine=LocalEngine, clock=clock, isolation="none", lease=LEASE, store=store, **more
        )

    # sent, received, failed
    send(table, messages_to_batches(bodies), key="send", clock=clock)
    assert bodies_in(table) == list(bodies)
    a_pass("fail").run("one")
    assert SEEN == bodies_in(table) == list(bodies)

    # found
    found = query(table, "select raw, text from messages order by lookup_id")
    assert found["raw"].to_pylist() == list(bodies)
    for body, text in zip(bodies, found["text"].to_pylist(), strict=True):
        assert text is None or text.encode() == body
        assert text is not None or not _is_utf8(body)

    # edited in another field, and undone
    plan_id = done(table, clock, PATCH, store)
    for before, after in zip(bodies, bodies_in(table), strict=True):
        if is_patchable(before):
            assert (FIELD, Number("1")) in tree(after)  # type: ignore[operator]  # it is an object
        else:
            assert after == before
        if isinstance(value := tree(before) if is_patchable(before) else None, Pairs):
            assert tree(after) == [*value, (FIELD, Number("1"))]
            assert after.startswith(before[:-1].rstrip()[:-1])
    undo(table, plan_id, clock, who="shell:ann@here")
    assert bodies_in(table) == list(bodies)

    # put back, received, landed
    done(table, clock, PlanAction(verb=Verb.PUT_BACK), store)
    assert bodies_in(table) == list(bodies)
    SEEN.clear()
    outputs = outputs_of(None, deliver=True, schema="id bigint, body binary")
    a_pass("land", outputs=outputs, deliver=lambda table, _key: landed.append(table)).run("two")
    assert list(bodies) == SEEN
    assert bodies_in(table) == []
    assert pa.concat_tables(landed).sort_by("id")["body"].to_pylist() == list(bodies)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_the_columns_of_a_query_say_what_they_are() -> None:
    assert {"raw", "text", "body"} <= set(sql.COLUMNS.split(", "))
