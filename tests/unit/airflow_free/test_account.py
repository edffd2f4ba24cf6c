"""A pass's result in words: what a task's log and its error say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from airflow_poison.delivery.stage import HaltRecord
from airflow_poison.passes.halts import WHEN_ENABLED
from airflow_poison.passes.runs import ReceiveResult, account, halted

NOTHING = ReceiveResult("orders", "run")
SOME = replace(NOTHING, received=9, seconds=3.0, deliveries=12, rollbacks=5)
HALT = HaltRecord(lookup_id=7, how="faulted", error="ValueError: bad", at="2013-01-01T00:00:00+00:00", abort_count=2, move_count=0, details={})


def having(**numbers: int) -> ReceiveResult:
    return replace(SOME, **numbers)  # type: ignore[arg-type]  # names of numbers


def test_a_queue_without_messages_is_one_line() -> None:
    assert list(account(NOTHING)) == ["Queue 'orders': nothing to receive."]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("settled", "settled"),
        ("parked", "parked in retry"),
        ("poisoned", "moved to poison"),
        ("postponed", "postponed"),
        ("dropped", "dropped"),
        ("rejected", "rejected"),
        ("dead_lettered", "moved to the dead-letter queue"),
        ("requeued", "moved to the backout queue"),
        ("exceptioned", "moved to the exception destination"),
        ("blocked", "blocked, waiting at their place"),
        ("untouched", "not reached"),
        ("halted_messages", "halted the queue"),
    ],
)
def test_every_end_of_a_message_is_told(end: str, words: str) -> None:
    first, second = account(having(**{end: 9}))

    assert first == f"Queue 'orders': 9 messages in 3.0 s (3/s): 9 {words}."
    assert second == "12 deliveries, 5 of them rolled back (0 ended their process, 0 timed out)."


def test_messages_that_other_passes_hold_are_not_passed_over() -> None:
    """A pass has died on a full disk: four messages wait, and the next one was said to find nothing to receive."""
    [line] = account(replace(NOTHING, held=4, held_until="2013-01-01T00:30:00+00:00"))
    assert line == (
        "Queue 'orders': nothing to receive: 4 messages are held by other passes, until 2013-01-01 00:30:00 UTC where a pass has died; "
        "a pass with its run key goes on with them at once."
    )


def test_a_single_message_is_no_plural() -> None:
    first, second = account(replace(NOTHING, received=1, settled=1, seconds=1.0, deliveries=1))

    assert first == "Queue 'orders': 1 message in 1.0 s (1/s): 1 settled."
    assert second.startswith("1 delivery, 0 of them rolled back")
    assert "1 message was settled before, 1 was not reached." in halted(replace(SOME, settled=1, untouched=1, halted=HALT), "Msmq4")


def test_no_end_is_left_out() -> None:
    """The account adds up as the result says of itself."""
    described = re.findall(r"\w+", re.search(r"``received = (.*?)``", ReceiveResult.__doc__ or "", re.DOTALL)[1])  # type: ignore[index]  # it is there
    told = " ".join(account(having(**dict.fromkeys(described, 4321))))

    assert told.count("4,321") == len(described) == 12


def test_messages_behind_a_halt_are_told_with_its_reason() -> None:
    first, *_ = account(replace(SOME, untouched=3, halted_messages=1, halted=HALT))

    assert first.endswith("1 halted the queue, 3 not reached because the queue is faulted.")


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("2013-01-01T00:00:05+00:00", "until 2013-01-01 00:00:05 UTC"),
        ("restart", "until its broker is restarted or the message is removed"),
    ],
    ids=["DMP-9", "DMP-10"],
)
def test_a_blocked_queue_is_told_with_its_end(until: str, words: str) -> None:
    blocked = replace(SOME, untouched=3, blocked=1, blocked_until=until)

    first, *_, last = account(blocked)

    assert first.endswith("1 blocked, waiting at their place, 3 not reached because the queue is blocked.")
    assert last == f"Queue 'orders' is blocked {words}; nothing is received meanwhile."
    assert list(account(replace(NOTHING, blocked_until=until))) == [last]


def test_dmp_14_a_block_names_the_message_and_its_obstacle() -> None:
    *_, blocked, why = account(replace(SOME, blocked=1, blocked_until="restart", blocked_by=7, obstacle="exception_destination=None"))

    assert "is blocked by message 7 until" in blocked
    assert why == "Why messages are blocked: exception_destination=None. To go on, change that and restart the broker, or remove the message 7."


@pytest.mark.parametrize(
    ("how", "system", "details", "happened", "next_step"),
    [
        ("disabled", "ServiceBroker", {"rollbacks": "5"}, "5 receives in a row were rolled back", "what is sent to the queue waits"),
        ("stopped", "ActivationSpecification", {"code": "CWWMQ0007W", "text": "It was stopped."}, "CWWMQ0007W: It was stopped.", "begins at the top"),
        ("stopped", "DefaultMessaging", {"reason": "sequential message failures: 1"}, "sequential message failures: 1.", "begins at the top"),
        ("faulted", "Msmq4", {}, "(faulted): ValueError: bad.", "its attempts are used up"),
        ("faulted", "Msmq3", {}, "(faulted): ValueError: bad.", "has fresh attempts then"),
    ],
)
def test_a_halted_queue_says_what_happened_which_message_and_the_next_step(
    how: str, system: str, details: dict[str, str], happened: str, next_step: str
) -> None:
    text = halted(replace(SOME, settled=2, untouched=6, halted={**HALT, "how": how, "details": details}), system)

    assert text.startswith(f"Message 7 of queue 'orders' halted it ({how}): ValueError: bad.")
    assert text.endswith(WHEN_ENABLED)  # whether the failed task is to be cleared
    for words in (
        happened,
        next_step,
        "QueueHook().queue('orders').remove(7)",
        "QueueHook().queue('orders').enable()",
        "2 messages were settled before, 6 were",
    ):
        assert words in text


def test_sb_13_an_endpoint_that_ended_after_a_commit_blames_no_message() -> None:
    text = halted(replace(SOME, halted={**HALT, "lookup_id": None, "error": "", "how": "disabled"}))

    assert text.startswith("Queue 'orders' was halted (disabled) after a commit.")
    assert "To go on, enable the queue with QueueHook().queue('orders').enable()." in text
    assert "remove" not in text
