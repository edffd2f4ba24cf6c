"""Inspections change nothing, whatever they see; only a strict one counts (spec SB-27 to SB-33, SB-E8)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR
from airflow_poison.passes.alter import disable, enable
from airflow_poison.passes.inspect import InspectResult, inspect
from airflow_poison.passes.move import remove
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4, PoisonSubQueue
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import QueueHaltedError, SettingError
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, a_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

MODES = ["browse", "exempt", "strict"]
RECEIVING = ["exempt", "strict"]


@pytest.fixture
def queue(store: QueueStore, tmp_path: Path) -> Queue:
    """SB-E8: d1 holds messages 1 and 4, d5 message 2, d6 an empty message 3."""
    queue = a_queue(store, tmp_path, ServiceBroker())
    return sent(queue, ("d1", b"<a/>"), ("d5", b"\xff\x00"), ("d6", b""), ("d1", b"<b/>"))


def sent(queue: Queue, *messages: tuple[str, bytes], priority: int = 5, kind: str | None = None) -> Queue:
    conversations, contents = zip(*messages, strict=True)
    columns: dict[str, pa.Array[Any]] = {
        "body": pa.array(contents, pa.binary()),
        "conversation_id": pa.array(conversations, pa.string()),
        "message_type": pa.array([kind] * len(messages), pa.string()),
        "priority": pa.array([priority] * len(messages), pa.int32()),
    }
    send(queue.table, [pa.RecordBatch.from_pydict(columns)], key=f"{queue.table.snapshot().version}", clock=queue.clock)
    return queue


def look(queue: Queue, **arguments: object) -> InspectResult:
    """Inspect; waiting lets the virtual time go by."""
    return inspect(queue.table, queue.clock, pause=lambda seconds: queue.clock.advance(timedelta(seconds=seconds)), **arguments)  # type: ignore[arg-type]  # the names are the parameters'


def seen(result: InspectResult) -> list[int]:
    return [message.lookup_id for message in result.messages]


def rollbacks(queue: Queue) -> int:
    return queue.table.snapshot().control.counters.get("rollbacks", 0)


@pytest.fixture
def unchanged(queue: Queue) -> Callable[[], None]:
    """Fails when anything about the queue's messages or events is not as it was."""
    rows, files = queue.rows(), queue.table.snapshot().files

    def check() -> None:
        assert (queue.rows(), queue.table.snapshot().files, queue.happened()) == (rows, files, [])

    return check


# What is seen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_sb_27_a_conversation_shows_its_first_message_and_returns_it(queue: Queue, mode: str, unchanged: Callable[[], None]) -> None:
    result = look(queue, conversation_id="d1", mode=mode)
    assert (seen(result), result.messages[0].body, result.more) == ([1], b"<a/>", 1)
    unchanged()


def test_sb_28_every_message_of_a_conversation_can_be_listed(queue: Queue) -> None:
    assert seen(look(queue, conversation_id="d1", every=True)) == [1, 4]


@pytest.mark.parametrize("mode", MODES)
def test_sb_41_the_timer_and_the_error_of_a_conversation_are_seen_before_older_messages_of_it(queue: Queue, mode: str) -> None:
    """As RECEIVE TOP(1) takes them (spec section 10, Q-8); messages of other conversations are not overtaken."""
    for kind in (END_DIALOG, ERROR, DIALOG_TIMER):
        sent(queue, ("d5", b""), kind=kind)
    assert seen(look(queue, conversation_id="d5", mode=mode)) == [7]
    assert seen(look(queue, conversation_id="d5", mode=mode, every=True)) == [7, 6, 2, 5]
    assert seen(look(queue, mode=mode)) == [1]
    sent(queue, ("d1", b""), kind=ERROR)
    assert seen(look(queue, mode=mode)) == [8], "the conversation with the oldest message comes first, and in it the error"


@pytest.mark.parametrize("mode", MODES)
def test_a_message_is_seen_by_its_lookup_id(queue: Queue, mode: str) -> None:
    assert seen(look(queue, lookup_id=3, mode=mode)) == [3]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_choice_the_head_is_seen(queue: Queue, mode: str) -> None:
    assert seen(look(queue, mode=mode)) == [1]
    sent(queue, ("low", b"x"), priority=9)
    sent(queue, ("low", b"x"), priority=9)
    assert seen(look(queue, mode=mode)) == [5]


def test_the_head_is_found_in_a_file_of_several_priorities(queue: Queue) -> None:
    columns: dict[str, pa.Array[Any]] = {"body": pa.array([b"a", b"b", b"c"]), "priority": pa.array([1, 8, 8], pa.int32())}
    send(queue.table, [pa.RecordBatch.from_pydict(columns)], key="mixed", clock=queue.clock)
    assert seen(look(queue)) == [6]


def test_a_row_has_all_that_people_want_to_know(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path).sent("bad day", properties={"kind": "order"})
    queue.receive()
    [message] = look(queue, lookup_id=1).messages
    assert (message.sub_queue, message.abort_count, message.move_count, message.crash_count) == ("poison", 0, 1, 0)
    assert (message.text, message.properties, message.reason) == ("bad day", {"kind": "order"}, "tests.given.passes.BadMessageError: bad day")
    assert message.last_error is not None
    assert message.last_error["kind"] == "exception"
    assert message.enqueued_at == queue.clock.now()


def test_the_modes_are_those_of_the_queues_settings_unless_said_otherwise(store: QueueStore, tmp_path: Path, queue: Queue) -> None:
    assert look(queue, lookup_id=1).mode == "exempt"
    assert inspect(store.create("wcf", a_queue_row()), queue.clock).mode == "browse"


def a_queue_row() -> Any:
    from airflow_poison.store.control import Control

    return Control(Msmq4().to_dict())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"mode": "peek"}, "browse"), ({"lookup_id": 1, "conversation_id": "d1"}, "not together")],
)
def test_wrong_arguments_are_told(queue: Queue, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        look(queue, **arguments)


def test_sb_33_only_service_broker_counts_inspections(store: QueueStore, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="browse or exempt"):
        look(a_queue(store, tmp_path).sent("good"), mode="strict")


# A halted queue -----------------------------------------------------------------------------------------------------


def test_sb_33_a_disabled_queue_can_be_browsed(queue: Queue) -> None:
    disable(queue.table, queue.clock)
    result = look(queue, conversation_id="d1", mode="browse")
    assert (seen(result), result.state) == ([1], "disabled")


@pytest.mark.parametrize("mode", RECEIVING)
def test_sb_18_receiving_from_a_disabled_queue_is_error_9617(queue: Queue, mode: str) -> None:
    disable(queue.table, queue.clock, "we look at it")
    with pytest.raises(QueueHaltedError, match=r"9617.*'orders' is currently disabled \(we look at it\).*mode='browse'"):
        look(queue, conversation_id="d1", mode=mode)


def test_sb_18_a_session_that_waits_gets_the_error_at_once(queue: Queue) -> None:
    assert queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9) is not None

    def meanwhile(_seconds: float) -> None:
        disable(queue.table, queue.clock)

    with pytest.raises(QueueHaltedError, match="9617"):
        inspect(queue.table, queue.clock, lookup_id=1, pause=meanwhile)


def test_sb_15_the_suspect_is_the_message_that_disabled_the_queue(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ServiceBroker()).sent("good", "bad", "good")
    queue.receive()
    assert queue.table.snapshot().control.state is QueueState.DISABLED
    sent(queue, ("held", b"x"), priority=10)
    assert seen(look(queue, mode="browse")) == [2]
    remove(queue.table, 2, queue.clock)
    assert seen(look(queue, mode="browse")) == [3]


def test_the_suspect_of_a_halted_reader_of_poison_is_its_message(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path).sent("good", "bad")
    queue.receive("application")
    queue.sent("good").receive("reader", policy=PoisonSubQueue(receive_retry_count=0))
    assert queue.table.snapshot().control.poison_state is QueueState.FAULTED
    assert seen(look(queue, mode="browse")) == [2]


def test_held_and_parked_messages_can_be_browsed_and_not_received(queue: Queue) -> None:
    disable(queue.table, queue.clock)
    sent(queue, ("held", b"x"))
    assert [message.sub_queue for message in look(queue, lookup_id=5, mode="browse").messages] == ["transmission"]
    enable(queue.table, queue.clock)
    queue.table.move_files(lambda snapshot: snapshot.files[-1:], SubQueue.POISON, queue.clock.now())
    assert look(queue, lookup_id=5, mode="exempt").messages == ()
    assert seen(look(queue, lookup_id=5, mode="browse")) == [5]


# While a pass has the message ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", RECEIVING)
def test_sb_29_an_inspection_gives_up_after_two_seconds(queue: Queue, mode: str) -> None:
    assert queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9) is not None
    started = queue.clock.now()
    result = look(queue, conversation_id="d1", mode=mode)
    assert result.messages == ()
    assert timedelta(seconds=2) <= queue.clock.now() - started < timedelta(seconds=2.1)
    assert rollbacks(queue) == 0


def test_sb_29_it_sees_the_message_that_the_pass_gives_back_meanwhile(queue: Queue) -> None:
    claim = queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9)
    assert claim is not None
    result = inspect(queue.table, queue.clock, lookup_id=2, pause=lambda _seconds: queue.table.release(claim))
    assert seen(result) == [2]


def test_sb_33_browsing_reads_what_a_pass_has_claimed(queue: Queue) -> None:
    assert queue.table.claim("pass", lease=LEASE, now=queue.clock.now(), max_messages=9) is not None
    started = queue.clock.now()
    assert seen(look(queue, mode="browse")) == [1]
    assert queue.clock.now() == started


def test_no_message_is_no_error(queue: Queue) -> None:
    for arguments in ({"lookup_id": 99}, {"conversation_id": "d99"}):
        assert look(queue, mode="browse", **arguments).messages == ()
        assert look(queue, mode="exempt", **arguments).messages == ()


def test_an_empty_queue_has_no_suspect(store: QueueStore, tmp_path: Path) -> None:
    assert look(a_queue(store, tmp_path)).messages == ()


# What counts --------------------------------------------------------------------------------------------------------


E8 = [("d1", 1), ("d5", 2), ("d6", 3), ("taken", 3), ("d1", 4), ("d1", 5)]


@pytest.mark.parametrize("mode", MODES)
def test_sb_e8_only_strict_inspections_count_and_the_fifth_disables_the_queue(queue: Queue, mode: str) -> None:
    rows = queue.rows()
    for conversation, strict in E8:
        if conversation == "taken":
            reader = queue.table.claim("reader", lease=LEASE, now=queue.clock.now(), max_messages=9)
            assert reader is not None
            result = look(queue, conversation_id="d1", mode=mode)
            queue.table.release(reader)
            assert bool(result.messages) == (mode == "browse")
        else:
            result = look(queue, conversation_id=conversation, mode=mode)
            assert result.messages
        assert rollbacks(queue) == (strict if mode == "strict" else 0)
        assert result.state == ("disabled" if mode == "strict" and strict == 5 else "enabled")
    assert queue.rows() == rows
    assert [event for event, _ in queue.happened()] == (["QUEUE_DISABLED"] if mode == "strict" else [])


def test_sb_17_the_event_of_an_inspection_has_the_document_and_says_who_did_it(queue: Queue) -> None:
    for _ in range(5):
        look(queue, lookup_id=2, mode="strict")
    [event] = queue.table.events()
    assert (event.lookup_id, event.details["by"], event.details["rollbacks"]) == (2, "inspection", "5")
    assert "BROKER_QUEUE_DISABLED" in event.details["document"]
    control = queue.table.snapshot().control
    assert (control.state, "message 2 of queue 'orders'" in control.reason) == (QueueState.DISABLED, True)
    assert seen(look(queue, mode="browse")) == [2]


def test_sb_8_several_messages_of_one_inspection_are_one_rollback(queue: Queue) -> None:
    look(queue, conversation_id="d1", mode="strict", every=True)
    assert rollbacks(queue) == 1


def test_sb_33_a_strict_inspection_adds_to_the_rollbacks_of_passes(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ServiceBroker(rollback_limit=7)).sent("bad", "good")
    queue.table.alter(lambda control: control.with_endpoint_counters({"rollbacks": 6}))
    assert look(queue, mode="strict").state == "disabled"


def test_sb_33_counts_of_a_conversation_group_are_its_own(store: QueueStore, tmp_path: Path) -> None:
    queue = sent(a_queue(store, tmp_path, ServiceBroker(scope="conversation_group")), ("d1", b"a"), ("d2", b"b"))
    for _ in range(4):
        look(queue, conversation_id="d1", mode="strict")
    assert look(queue, conversation_id="d2", mode="strict").state == "enabled"
    assert look(queue, conversation_id="d1", mode="strict").state == "disabled"


def test_a_strict_inspection_that_is_overtaken_by_a_disabling_is_refused(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.alter.before_commit", lambda: disable(queue.table, queue.clock))
    with pytest.raises(QueueHaltedError):
        look(queue, lookup_id=1, mode="strict")
    assert queue.happened() == []


def test_two_strict_inspections_at_once_both_count(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.alter.before_commit", lambda: look(queue, lookup_id=1, mode="strict"))
    look(queue, lookup_id=2, mode="strict")
    assert rollbacks(queue) == 2


# Plain values -------------------------------------------------------------------------------------------------------


def test_bodies_are_text_or_base64_in_plain_values(queue: Queue) -> None:
    shown = look(queue, mode="browse", lookup_id=1).to_dict()
    assert json.loads(json.dumps(shown))["messages"][0]["body"] == "<a/>"
    plain = look(queue, mode="browse", lookup_id=2).messages[0].to_dict()
    assert (plain["body"], plain["body_encoding"], plain["body_bytes"], plain["body_cut"]) == ("/wA=", "base64", 2, False)
    assert plain["enqueued_at"] == "2013-01-01T00:00:00+00:00"


@pytest.mark.parametrize(("body", "encoding"), [("ä" * 40_000, "text"), (b"\xff" * 70_000, "base64")])
def test_long_bodies_are_cut_at_64_kib_and_say_so(queue: Queue, body: str | bytes, encoding: str) -> None:
    import base64

    content = body.encode() if isinstance(body, str) else body
    sent(queue, ("long", content))
    [message] = look(queue, conversation_id="long", mode="browse").messages
    plain = message.to_dict()
    kept = str(plain["body"]).encode() if encoding == "text" else base64.b64decode(str(plain["body"]))
    assert (plain["body_encoding"], plain["body_cut"], plain["body_bytes"]) == (encoding, True, len(content))
    assert content.startswith(kept)
    assert len(kept) == 64 * 1024
    assert message.body == content
