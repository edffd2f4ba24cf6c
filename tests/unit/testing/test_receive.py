"""The helper for users' own tests: each message's end is the one that the policy's own rules give."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import UUID

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import Message, Msmq4, PoisonSubQueue, Postpone, Unprocessable, replay
from airflow_poison.testing import VirtualClock, receive, sessiongram
from airflow_poison.values.errors import ConfigurationWarning, HandlerNotFoundError, HandlerNotRunError, InputError, SettingError
from airflow_poison.values.failures import FailureKind
from tests.sessions import sample_handlers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.delivery.handler_wrappers import Session

MOVE = Msmq4(receive_retry_count=1, max_retry_cycles=1, retry_cycle_delay=timedelta(minutes=30), receive_error_handling="Move")


NOW = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move")


def refuse_bad(message: Message) -> None:
    if message.text == "bad":
        raise KeyError("who")


def test_a_good_message_is_processed_and_a_bad_one_goes_through_all_cycles_to_poison() -> None:
    good, bad = received = receive(refuse_bad, ["good", b"bad"], MOVE)

    assert (good.place, good.deliveries, good.last_error) == ("processed", 1, None)
    assert (bad.place, bad.deliveries, bad.abort_count, bad.move_count) == ("poison", 4, 0, 3)
    assert bad.last_error is not None
    assert (bad.last_error.kind, bad.last_error.type, bad.last_error.text) == (FailureKind.EXCEPTION, "KeyError", "'who'")
    assert received.elapsed == timedelta(minutes=30)
    assert [done.received for done in received.passes] == [2, 1]
    assert received.halted is None


@pytest.mark.parametrize("handling", ["Drop", "Reject", "Move", "Fault"])
def test_it_says_what_replay_says(handling: str) -> None:
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=1, receive_error_handling=handling)

    [bad] = received = receive(refuse_bad, ["bad"], policy)
    foretold = replay(policy, "rb*")

    end = foretold.message()
    assert (bad.place, bad.deliveries) == (end.place, end.deliveries)
    assert [(call.abort_count, call.move_count) for call in bad.calls] == [(d.counts.abort_count, d.counts.move_count) for d in foretold.deliveries]
    assert received.halted == foretold.halted
    assert received.elapsed == foretold.elapsed
    assert bad.last_error is not None


def test_what_fails_at_first_and_succeeds_in_the_second_cycle_is_processed() -> None:
    def late(message: Message) -> None:
        if message.move_count < 2:
            raise ConnectionError("not yet")

    [outcome] = receive(late, ["x"], MOVE)

    assert (outcome.place, outcome.deliveries, outcome.last_error) == ("processed", 3, None)
    assert [type(call.error) for call in outcome.calls] == [ConnectionError, ConnectionError, type(None)]


def test_messages_are_taken_as_a_send_takes_them() -> None:
    values = [{"d": Decimal("1.10"), "at": datetime(2026, 1, 1, tzinfo=UTC), "id": UUID(int=1)}, [Decimal("2.50")]]

    assert [outcome.body for outcome in receive(lambda _: None, values, NOW)] == [
        b'{"d": 1.10, "at": "2026-01-01T00:00:00.000Z", "id": "00000000-0000-0000-0000-000000000001"}',
        b"[2.50]",
    ]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"d": float("nan")}], r"messages\[0\]: dict .* no NaN"),
        ([{"d": "\ud800"}], "surrogates not allowed"),
        (["\ud800"], "lone surrogate"),
        ([{1: 2, "1": 3}], "one name in JSON"),
        ("text", r"Write \[...\] around it"),
        ({"a": 1}, r"Write \[...\] around it"),
    ],
)
def test_what_a_send_refuses_is_refused(messages: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        receive(lambda _: None, messages, NOW)


def test_the_rows_of_a_data_frame_are_messages() -> None:
    good, bad = receive(lambda _: None, pd.DataFrame({"a": ["x", "\ud800"]}), NOW)

    assert (good.body, good.place) == (b'{"a":"x"}', "processed")
    assert (bad.place, bad.deliveries) == ("poison", 0)
    assert bad.last_error is not None
    assert bad.last_error.type == "MalformedError"


def test_unprocessable_messages_are_tried_once() -> None:
    def parse(message: Message) -> None:
        message.json()
        raise Unprocessable("never")

    raised, listed = receive(parse, [{"id": 1}, "{"], MOVE, unprocessable=["json:JSONDecodeError"])

    assert (raised.place, raised.deliveries) == (listed.place, listed.deliveries) == ("poison", 1)
    assert raised.last_error is not None
    assert raised.last_error.kind is FailureKind.UNPROCESSABLE


def test_a_postponed_message_comes_back_uncounted_when_its_time_has_come() -> None:
    clock = VirtualClock()
    ready = clock.now() + timedelta(minutes=12)

    def wait(message: Message) -> None:
        assert message.abort_count == message.move_count == 0
        if clock.now() < ready:
            raise Postpone(timedelta(minutes=5))

    [outcome] = received = receive(wait, ["x"], MOVE, clock=clock)

    assert (outcome.place, outcome.deliveries) == ("processed", 4)
    assert received.elapsed == timedelta(minutes=15)


def test_a_handler_that_postpones_for_ever_is_stopped() -> None:
    handler = Mock(side_effect=Postpone(timedelta(days=1)))

    received = receive(handler, ["x"], MOVE, most_passes=3)

    assert received.endless
    assert handler.call_count == 3
    assert "would go on" in str(received)


def test_it_stops_at_a_time() -> None:
    [outcome] = received = receive(refuse_bad, ["bad"], MOVE, until=timedelta(minutes=29))

    assert (outcome.place, outcome.deliveries, received.elapsed) == ("retry", 2, timedelta(minutes=29))


def test_a_fault_leaves_what_follows_where_it_was() -> None:
    received = receive(refuse_bad, ["good", "bad", "good"], Msmq4(receive_retry_count=0, max_retry_cycles=0))

    assert received.places == ["processed", "main", "main"]
    assert received.halted == "faulted"
    assert received[2].deliveries == 0
    assert str(received).splitlines() == [
        "message 1 b'good': processed after 1 deliveries",
        "message 2 b'bad': main after 1 deliveries, last error KeyError: 'who'",
        "message 3 b'good': main after 0 deliveries",
        "The queue is faulted.",
    ]


def test_the_reader_of_poison_gets_the_messages_from_there() -> None:
    received = receive(refuse_bad, ["bad", "good"], PoisonSubQueue(receive_retry_count=2, receive_error_handling="Drop"))

    assert received.places == ["dropped", "processed"]
    assert received.deliveries == 4


def test_a_message_that_is_consumed_before_its_handler_fails_is_lost() -> None:
    with pytest.warns(ConfigurationWarning):
        policy = Msmq4(exactly_once=False)
    assert receive(refuse_bad, ["bad", "good"], policy).places == ["lost", "processed"]


def test_a_message_above_the_size_limit_is_never_delivered() -> None:
    [outcome] = receive(refuse_bad, ["good"], Msmq4(max_received_message_size=3, receive_error_handling="Move"))

    assert (outcome.place, outcome.deliveries) == ("poison", 0)
    assert outcome.last_error is not None
    assert outcome.last_error.kind is FailureKind.UNREADABLE


def test_sessions_are_counted_as_one_message() -> None:
    def consume(session: Session) -> None:
        bodies = [item.body for item in session]
        assert b"bad" not in bodies

    received = receive(
        consume,
        [sessiongram([b"a", b"b"]), sessiongram([b"a", b"bad"])],
        Msmq4(sessions=True, receive_error_handling="Move"),
    )

    assert [(outcome.place, outcome.deliveries) for outcome in received] == [("processed", 1), ("poison", 18)]


def test_a_messages_fields_reach_the_handler() -> None:
    seen: list[tuple[object, ...]] = []
    sent_at = datetime(2020, 2, 2, tzinfo=UTC)

    def note(message: Message) -> None:
        seen.append((message.priority, message.group_id, message.message_id, message.properties, message.enqueued_at, message.lookup_id))

    receive(note, ["plain", Message(b"x", priority=9, group_id="UA", message_id="m", properties={"a": "b"}, enqueued_at=sent_at)], MOVE)

    assert seen[0] == (9, "UA", "m", {"a": "b"}, sent_at, 2)  # the higher priority comes first
    assert seen[1][0] == 5


def test_a_handler_may_be_named() -> None:
    assert receive("json:loads", ["1"], MOVE).places == ["poison"]  # a Message is no text


@pytest.mark.parametrize(
    "handler", [lambda: None, "no_such_module:f", 7, sample_handlers.yields, sample_handlers.runs_later, f"{sample_handlers.__name__}:coroutine"]
)
def test_what_cannot_be_called_with_a_message_is_refused(handler: Callable[..., object]) -> None:
    with pytest.raises(HandlerNotFoundError):
        receive(handler, ["x"], MOVE)


def test_a_handler_that_returns_work_instead_of_doing_it_fails_its_message() -> None:
    received = receive(sample_handlers.returns_coroutine, ["x"], MOVE)

    assert received.places == ["poison"]
    assert isinstance(received[0].calls[-1].error, HandlerNotRunError)
    assert "asyncio.run" in str(received[0].calls[-1].error)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(SettingError, match=r"policy='Msmq4' .*Msmq4\(\)"):
        receive(refuse_bad, ["x"], "Msmq4")  # type: ignore[arg-type]  # that is what is refused


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(InputError, match=re.escape("messages[1] is int")):
        receive(refuse_bad, ["x", 7], MOVE)


def test_no_message_is_no_work() -> None:
    received = receive(refuse_bad, [], MOVE)
    assert (len(received), received.deliveries) == (0, 0)


# What an output holds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"took": timedelta(1)}, "a Delta table has no type for duration"),
        ({"a": 1, "A": 2}, "differ by case alone"),
        ({"empty": {}}, "no struct without fields"),
    ],
)
def test_a_row_that_no_delta_table_holds_fails_its_message_as_in_a_pass(row: dict[str, object], says: str) -> None:
    received = receive(lambda message: row if message.text == "odd" else {"id": 1}, ["odd", "good"], NOW, output="/x")

    assert received.places == ["poison", "processed"]
    assert received[0].last_error is not None
    assert says in received[0].last_error.text
    assert received.rows == [{"id": 1}]


def test_the_table_of_an_output_says_which_rows_fit_and_is_left_alone(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"n": pa.array([1], pa.int32())}))
    DeltaTable(str(tmp_path / "out")).alter.add_constraint({"positive": "n > 0"})

    received = receive(lambda message: {"n": int(message.text)}, ["5", "-1", "9999999999"], NOW, output=str(tmp_path / "out"))

    assert received.places == ["processed", "poison", "poison"]
    assert received.rows == [{"n": 5}]
    assert DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist() == [{"n": 1}]


def test_rows_of_one_key_are_merged_as_they_would_be_in_the_output() -> None:
    def land(message: Message) -> list[dict[str, Any]]:
        row = message.json()
        if row["n"] == 3 and not message.move_count:
            raise LookupError("later")
        return [row, {"id": None, "n": row["n"]}]

    sent = [{"id": 1, "n": 1}, {"id": 1, "n": 3}, {"id": 2, "n": 4}, {"id": 1, "n": 5}]
    received = receive(land, sent, MOVE, output="/x", output_keys=["id"])
    assert received.places == ["processed"] * 4
    assert received.rows == [{"id": 2, "n": 4}, {"id": 1, "n": 3}, {"id": None, "n": 3}]
    assert len(receive(land, sent, MOVE, output="/x").rows) == 8
    assert receive(land, [], MOVE, output="/x", output_keys=["id"]).rows == []


def test_several_data_frames_are_messages_as_of_a_send() -> None:
    received = receive(refuse_bad, [pa.table({"a": [1]}), pd.DataFrame({"a": [2, 3]})], NOW)
    assert [outcome.body for outcome in received] == [b'{"a":1}', b'{"a":2}', b'{"a":3}']
