"""Maintain as a verb: what it does in one call, what it reports, what it refuses."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison import Message, Msmq4
from airflow_poison.dialogs import acts
from airflow_poison.dialogs.acts import ConversationState
from airflow_poison.dialogs.as_rows import endpoints_to_table
from airflow_poison.passes.alter import declare
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.maintain import MaintainResult, maintain
from airflow_poison.passes.receive import LEASE, ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.store.delta_store import DeltaStore
from airflow_poison.store.files import Transaction
from airflow_poison.values import fault_points
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import SettingError
from tests.given import dialogs
from tests.given.stores import STORES, local_store

if TYPE_CHECKING:
    from airflow_poison.store import QueueStore
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable

NOW = datetime(2013, 1, 1, tzinfo=UTC)
REJECT = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Reject")
NONE = timedelta(0)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return local_store(request.param, tmp_path)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


def a_queue(store: QueueStore, clock: VirtualClock, sends: int) -> QueueTable:
    table = declare(store, "orders", REJECT, clock)
    for number in range(sends):
        send(table, [pa.RecordBatch.from_pydict({"body": pa.array([b"bad"], pa.binary())})], key=str(number), clock=clock)
    return table


def refuse(message: Message) -> None:
    raise ValueError(message.body)


def test_small_files_are_joined_and_what_nobody_needs_goes(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 5)
    before = table.snapshot()
    result = maintain(table, clock, retention=NONE, safe_age=NONE, min_files=3)
    assert (result.compacted["files"], result.compacted["into"], result.compacted["rows"]) == (5, 1, 5)
    assert result.removed["expired"] >= 5
    assert result.freed_bytes > 0
    assert sum(file.rows for file in table.snapshot().files) == sum(file.rows for file in before.files)
    again = maintain(table, clock, retention=NONE, safe_age=NONE, min_files=3)
    assert (again.compacted["files"], again.removed["expired"], again.removed["orphans"]) == (0, 0, 0)


def test_by_default_versions_of_a_week_stay(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 20)
    result = maintain(table, clock)
    assert result.compacted["files"] == 20
    assert (result.removed["expired"], result.kept["retention"]) == (0, 20)


def test_a_relay_that_died_is_finished_once(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 2)
    ReceivePass(table=table, policy=REJECT, handler=refuse, engine=LocalEngine, clock=clock, isolation="none").run(
        "run"
    )  # without a store, the outbox waits
    assert len(table.snapshot().outbox) == 1
    assert maintain(table, clock).relayed == 0
    assert maintain(table, clock, store=store).relayed == 2
    assert maintain(table, clock, store=store).relayed == 0
    assert sum(file.rows for file in store.open("orders.dead-letter").snapshot().files) == 2


def test_an_expired_claim_is_reported_and_left_alone(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 2)
    held = table.claim("run-0", lease=LEASE, now=clock.now(), max_messages=10)
    assert maintain(table, clock).expired_claims == ()
    clock.advance(LEASE)
    result = maintain(table, clock, retention=NONE, safe_age=NONE, min_files=2)
    expired = {"key": "run-0", "sub_queue": "main", "messages": 2, "expired_at": (NOW + LEASE).isoformat()}
    assert result.expired_claims == (expired,)
    assert table.snapshot().claims == (held,)


def _left(store: QueueStore, name: str, hours: int) -> Path:
    """What a maker of a queue leaves when it is killed, some time ago."""
    folder = Path(store.uri, name)
    (folder / "_delta_log").mkdir(parents=True)
    os.utime(folder, (time.time() - hours * 3_600,) * 2)
    return folder


def test_what_killed_makers_of_queues_have_left_goes_after_a_safe_age(tmp_path: Path, clock: VirtualClock) -> None:
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    table = a_queue(store, clock, 1)
    old, half_removed, young = _left(store, ".new-1", 25), _left(store, ".new-2.gone", 25), _left(store, ".new-3", 1)
    assert maintain(table, clock, store=store).removed["creations"] == 2
    assert (old.exists(), half_removed.exists(), young.exists()) == (False, False, True)
    assert maintain(table, clock, store=store).removed["creations"] == 0
    assert maintain(table, clock, store=store, safe_age=NONE).removed["creations"] == 1
    assert store.names() == ["orders"]


def test_a_maker_that_is_killed_leaves_what_the_sweep_finds(tmp_path: Path, clock: VirtualClock) -> None:
    """The folder's name is the one that the maker gives it."""
    store = DeltaStore(str(tmp_path / "store"), durable=False)
    table = a_queue(store, clock, 0)
    found: list[str] = []

    def look(point: str) -> None:
        if point == "store.create.before_rename":
            found.extend(str(path) for path in Path(store.uri).glob(".new-*"))
            shutil.copytree(found[0], Path(store.uri, ".new-copy"))

    fault_points.install(look)
    try:
        declare(store, "another", REJECT, clock)
    finally:
        fault_points.install(None)
    assert len(found) == 1
    assert maintain(table, clock, store=store, safe_age=NONE).removed["creations"] == 1
    assert store.names() == ["another", "orders"]


@pytest.mark.parametrize("wrong", [{"retention": timedelta(-1)}, {"safe_age": timedelta(-1)}, {"min_files": 1}])
def test_what_cannot_be_is_refused(store: QueueStore, clock: VirtualClock, wrong: dict[str, timedelta | int]) -> None:
    with pytest.raises(SettingError):
        maintain(a_queue(store, clock, 1), clock, **wrong)  # type: ignore[arg-type]


def test_versions_of_endpoints_are_merged_and_those_that_closed_long_ago_are_forgotten(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 0)
    month_ago, lately = NOW - timedelta(days=30, seconds=1), NOW - timedelta(days=30)
    dialogs.act(table, "1", dialogs.endpoint("open", 1, at=month_ago), dialogs.endpoint("closed", 1, at=month_ago))
    dialogs.act(table, "2", dialogs.endpoint("closed", 2, "CD", month_ago), dialogs.endpoint("lately", 4, "CD", lately), dialogs.letter("x"))
    assert maintain(table, clock, min_files=3).compacted["files"] == 0
    result = maintain(table, clock, min_files=2)
    assert (result.compacted["files"], result.compacted["into"], result.compacted["rows"]) == (2, 1, 4)
    assert dialogs.endpoints(table) == {"open": 1, "lately": 4}
    assert dialogs.letters(table) == ["x"]
    assert len(table.snapshot().conversations) == 1


def test_how_long_it_is_known_that_a_conversation_has_ended_counts_from_its_end(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 0)
    began = acts.begin("h", acts.Dialog(messages=(), group_id="g"), service="a", far_service="b", contract="c", now=NOW)
    ended = replace(began, state=ConversationState.CLOSED, version=2)
    table.transact(lambda _: Transaction(endpoints_to_table([began])), "begin", NOW)
    clock.advance(timedelta(days=90))
    table.transact(lambda _: Transaction(endpoints_to_table([ended])), "end", clock.now())
    clock.advance(timedelta(days=29))
    assert maintain(table, clock, min_files=2).compacted["files"] == 2
    assert dialogs.endpoints(table) == {"h": 2}


def test_an_endpoint_of_which_nobody_knows_when_it_closed_stays(store: QueueStore, clock: VirtualClock) -> None:
    table = a_queue(store, clock, 0)
    held = claimed(table, clock)
    timeless = [dialogs.endpoint("a", number, "CD") for number in (1, 2)]
    table.stage_table(held, dialogs.rows(*timeless))
    assert table.finish(held, table.seal(held, lambda _: {}), now=clock.now())
    dialogs.act(table, "more", dialogs.endpoint("b", 1))
    clock.advance(timedelta(days=90))
    maintain(table, clock, min_files=2)
    assert dialogs.endpoints(table) == {"a": 2, "b": 1}


def claimed(table: QueueTable, clock: VirtualClock) -> Claim:
    send(table, [pa.RecordBatch.from_pydict({"body": pa.array([b"good"], pa.binary())})], key="one", clock=clock)
    held = table.claim("run", lease=LEASE, now=clock.now(), max_messages=1)
    assert held is not None
    return held


def test_each_step_has_a_fault_point(store: QueueStore, clock: VirtualClock) -> None:
    reached: list[str] = []
    table = a_queue(store, clock, 1)
    fault_points.install(reached.append)
    try:
        maintain(table, clock)
    finally:
        fault_points.install(None)
    steps = ["before_relay", "before_compaction", "before_merging", "before_cleaning", "before_shortening", "after_shortening"]
    assert [point for point in reached if point.startswith("pass.maintain.")] == [f"pass.maintain.{step}" for step in steps]


def test_a_result_is_plain_values() -> None:
    assert MaintainResult("orders", expired_claims=({"key": "k"},)).to_dict()["expired_claims"] == [{"key": "k"}]
