"""The checker itself: it passes a history that is right, and names what is wrong with one that is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_poison.core.passes.declare import declare
from airflow_poison.core.passes.send import send
from tests.faults import ledger
from tests.faults.actors import Place, Task, act_quietly, enter
from tests.faults.checker import check
from tests.faults.world import queues

if TYPE_CHECKING:
    from tests.faults.verdict import Verdict


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Queues with messages that have been received once."""
    for name in (ledger.FOLDER, ledger.RUN, ledger.QUEUE, "POISON_FAULTS_ORIGIN"):
        monkeypatch.setenv(name, "")
    there = Place(str(tmp_path), time.monotonic())
    enter(there, 1, "engine")
    for name, rules in queues().items():
        declare(there.store, name, rules.policy, there.clock)
    sent = send(
        there.store.open("engine"), [pa.record_batch({"body": [b"ok", b"bad"] * 3, "message_id": [*"abcdef"]})], key="send-1", clock=there.clock
    )
    ledger.note("sent", queue="engine", key="send-1", first=sent.first_lookup_id, count=sent.sent)
    act_quietly(Task("receive", "engine", "first", 3), there)
    act_quietly(Task("alert", "engine", "first", 3), there)
    return there


def found(place: Place) -> Verdict:
    return check(place.folder, {})


def test_a_history_without_faults_passes(place: Place) -> None:
    assert found(place).lines() == []


def test_an_acknowledged_send_that_is_not_there_is_lost(place: Place) -> None:
    ledger.note("sent", queue="engine", key="send-x", first=1_000, count=2)
    assert found(place).lost


def test_a_call_that_no_event_tells_is_uncounted(place: Place) -> None:
    ledger.note("call", queue="engine", id=1, mid="a", a=7, m=0)
    assert found(place).uncounted


def test_a_success_that_is_called_again_is_doubled(place: Place) -> None:
    settled = next(line["id"] for line in ledger.Reader(place.folder).news() if line["kind"] == "end" and line["how"] == "ok")
    ledger.note("call", queue="engine", id=settled, mid="?", a=1, m=0)
    assert found(place).doubled


def test_an_event_that_nobody_was_told_of_is_missing(place: Place) -> None:
    path = ledger.path_in(place.folder)
    path.write_bytes(b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b'"told"' not in line))
    assert found(place).alerts_missing


def test_an_event_file_that_is_added_twice_is_told(place: Place) -> None:
    log = sorted(Path(place.folder, "store", "engine", "_delta_log").glob("*.json"))
    adds = [line for path in log for line in path.read_text().splitlines() if '"add"' in line and "_event" in line]
    with log[-1].open("a") as file:
        file.write("\n" + adds[0])
    assert found(place).doubled


def test_a_received_order_that_goes_back_is_told(place: Place) -> None:
    for number in (5, 4):
        ledger.note("call", queue="broker", id=number, mid="?", a=0, m=0)
    assert found(place).order
