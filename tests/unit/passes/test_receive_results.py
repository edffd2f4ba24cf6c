"""One pass over a queue: what it receives, where messages end, and what its result says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.stage import Tally
from airflow_poison.passes.alter import enable
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store.control import QueueState
from airflow_poison.store.memory import MemoryStore
from airflow_poison.values.errors import HandlerNotFoundError, QueueHaltedError, SettingError
from airflow_poison.values.schema import TALLY, SubQueue
from tests.given.dialogs import endpoint, endpoints, letter, letters, rows
from tests.given.passes import NO_RETRY, NoEngine, a_queue, calls, one_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.delivery.stage import StageJob
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.files import Claim
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.message import Message
    from tests.given.passes import Queue

FAULT = replace(NO_RETRY, receive_error_handling="Fault")
MINUTE = timedelta(minutes=1)


def test_an_empty_queue_makes_no_engine(queue: Queue) -> None:
    result = queue.receive(engine=NoEngine())

    assert (result.received, result.passes) == (0, 0)


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        ({"handler": "no.such:handler"}, HandlerNotFoundError),
        ({"unprocessable": ("no.such:Error",)}, HandlerNotFoundError),
        ({"isolation": "thread"}, SettingError),
    ],
    ids=["handler", "unprocessable", "isolation"],
)
def test_a_mistake_in_the_task_is_told_before_anything_is_claimed(queue: Queue, mistake: dict[str, object], error: type[Exception]) -> None:
    queue.sent("good")

    with pytest.raises(error):
        queue.a_pass(**mistake).run("run")

    assert queue.table.snapshot().claims == ()


class ConversingEngine(LocalEngine):
    """Delivers, and leaves what a handler did in its conversation beside the outcomes."""

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        super().run(table, claim, job, keep_alive=keep_alive)
        told = Tally(Counter(conversations=1, transmissions=2, sent=2))
        tally = {"body": json.dumps(told.to_record()).encode(), "sub_queue": TALLY, "move_count": 0}
        table.stage_table(claim, rows(endpoint("a", 2), letter("answer 1"), letter("answer 2"), tally))


def test_rows_of_conversations_are_no_messages_that_remain(queue: Queue) -> None:
    result = queue.sent("good", "bad").receive(engine=ConversingEngine, store=None)

    assert (result.received, result.settled, result.parked + result.poisoned + result.rejected + result.dropped) == (2, 1, 1)
    assert result.sent == 2
    assert (endpoints(queue.table), letters(queue.table)) == ({"a": 2}, ["answer 1", "answer 2"])


def test_a_message_that_faults_halts_the_queue(queue: Queue) -> None:
    queue.sent("good", "bad", "good", "good")

    result = queue.receive(policy=FAULT)

    control = queue.table.snapshot().control
    assert control.state is QueueState.FAULTED
    assert "message 2" in control.reason
    assert result.halted is not None
    assert (result.halted["how"], result.halted["lookup_id"]) == ("faulted", 2)
    assert result.halted["error"] == "tests.given.passes.BadMessageError: bad"
    assert (result.received, result.settled, result.halted_messages, result.untouched) == (4, 1, 1, 2)


def test_messages_behind_one_that_faults_are_untouched(queue: Queue) -> None:
    queue.sent("good", "bad", "good", "good")

    queue.receive(policy=FAULT)

    assert calls(queue.handler) == one_each(1, 2)
    assert queue.counts(2) == (2, 0)
    assert queue.counts(3) == queue.counts(4) == (0, 0)
    assert sorted(queue.rows(SubQueue.MAIN)) == [2, 3, 4]


def test_a_halted_queue_is_refused_with_its_message_and_the_next_step(queue: Queue) -> None:
    queue.sent("bad").receive(policy=FAULT)

    with pytest.raises(QueueHaltedError, match=r"'orders' is faulted: message 1 .*BadMessageError.*enable the queue"):
        queue.receive("again", policy=FAULT)


def test_an_enabled_queue_goes_on_behind_the_fault(queue: Queue) -> None:
    queue.sent("bad", "good").receive(policy=FAULT)
    enable(queue.table, queue.clock)

    result = queue.receive("again")

    assert (result.poisoned, result.settled, queue.counts(1)) == (1, 1, (0, 1))


def test_a_run_that_has_finished_receives_anew_under_its_key(queue: Queue) -> None:
    queue.sent("good", "good").receive()
    queue.sent("good")

    result = queue.receive()

    assert (result.received, result.passes) == (1, 1)
    assert calls(queue.handler) == one_each(1, 3)


def test_postponing_counts_nothing_and_comes_back_in_a_later_pass(queue: Queue) -> None:
    queue.sent("later", "good")

    first, second = queue.receive("first"), queue.receive("second")

    assert (first.postponed, first.rollbacks, first.settled, first.deliveries) == (1, 0, 1, 2)
    assert second.postponed == 1
    assert calls(queue.handler) == Counter({1: 2, 2: 1})
    assert queue.counts(1) == (0, 0)


def test_an_unprocessable_message_ends_at_once(queue: Queue) -> None:
    policy = Msmq4(receive_retry_count=5, max_retry_cycles=2, receive_error_handling="Move")
    queue.sent("never", "bad")

    result = queue.receive(policy=policy, unprocessable=("tests.given.passes:BadMessageError",))

    assert (result.poisoned, result.parked) == (2, 0)
    assert calls(queue.handler) == one_each(1, 2)


def test_an_oversized_message_ends_without_a_delivery(queue: Queue) -> None:
    """Spec WCF-29."""
    queue.sent("good " + "x" * 100, "good")

    result = queue.receive(policy=Msmq4(receive_error_handling="Move", max_received_message_size=100))

    assert (result.poisoned, result.settled, result.deliveries) == (1, 1, 1)
    assert calls(queue.handler) == {2: 1}
    assert sorted(queue.rows(SubQueue.POISON)) == [1]


def test_a_dropped_message_is_gone(queue: Queue) -> None:
    queue.sent("bad")

    result = queue.receive(policy=replace(NO_RETRY, receive_error_handling="Drop"))

    assert (result.dropped, result.dead_lettered, queue.rows()) == (1, 0, {})
    assert queue.store.names() == ["orders"]


def test_a_dropped_message_whose_time_is_over_goes_to_the_dead_letters(queue: Queue) -> None:
    """Spec WCF-22."""
    queue.sent("bad", expires=MINUTE).clock.advance(2 * MINUTE)

    result = queue.receive(policy=replace(NO_RETRY, receive_error_handling="Drop"))

    assert (result.dropped, result.dead_lettered, queue.rows()) == (0, 1, {})
    assert "orders.dead-letter" in queue.store.names()


def test_a_pass_takes_at_most_so_many_messages(queue: Queue) -> None:
    queue.sent(*["good"] * 25)

    received = [queue.receive(f"run {number}", max_messages=10).received for number in range(4)]

    assert received == [10, 10, 5, 0]
    assert calls(queue.handler) == one_each(1, 25)


def test_a_whole_batch_is_charged_for_its_member(queue: Queue) -> None:
    """Spec WCF-40, WCF-41: the innocent member of an aborted transaction counts one abort, too; later it is alone."""
    policy = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move", max_batch_size=3)
    queue.sent("good", "bad", "good")

    result = queue.receive(policy=policy)

    assert (result.settled, result.poisoned) == (2, 1)
    assert sorted(queue.rows(SubQueue.POISON)) == [2]
    assert calls(queue.handler, "done") == Counter({1: 2, 3: 1}), "message 1 succeeded in the transaction that message 2 aborted"


def test_a_queue_that_gives_no_second_chance_makes_the_innocent_poison(queue: Queue) -> None:
    """Spec WCF-43."""
    with pytest.warns(match="whole batch poison"):
        policy = replace(NO_RETRY, max_batch_size=3)
    queue.sent("good", "bad", "good")

    result = queue.receive(policy=policy)

    assert (result.settled, result.poisoned) == (1, 2)
    assert sorted(queue.rows(SubQueue.POISON)) == [1, 2]


@pytest.mark.parametrize("policy", [NO_RETRY, FAULT, Msmq4(receive_error_handling="Reject"), replace(NO_RETRY, receive_error_handling="Drop")])
def test_a_result_adds_up(queue: Queue, policy: Msmq4) -> None:
    queue.sent("good", "later", "never", "bad", "good", "bad")

    result = queue.receive(policy=policy)

    ends = (result.settled, result.parked, result.poisoned, result.postponed, result.dropped, result.rejected, result.untouched)
    assert sum(ends) + result.halted_messages == result.received == 6
    assert result.deliveries == calls(queue.handler).total()


def note_delivery(message: Message) -> None:
    """Write into the file that the body names how often the message was delivered."""
    with Path(message.text).open("a") as file:
        file.write(f"{message.properties.get('JMSXDeliveryCount')} {message.properties.get('JMSRedelivered')}\n")
    raise ValueError(message.text)


@pytest.mark.parametrize(
    ("policy", "seen"),
    [
        pytest.param(DefaultMessaging(max_failed_deliveries=2), ["1 false", "2 true"], id="DMP-4"),
        pytest.param(
            ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=2, backout_requeue_queue="SYSTEM.DEAD.LETTER.QUEUE"),
            ["1 false", "2 true"],
            id="WMQ-9",
        ),
        pytest.param(Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move"), ["99 None"] * 2, id="as sent"),
    ],
)
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_handlers_of_websphere_policies_see_which_delivery_it_is(tmp_path: Path, policy: Policy, seen: list[str], isolation: str) -> None:
    queue = a_queue(MemoryStore(), tmp_path, policy).sent(str(tmp_path / "seen"), properties={"JMSXDeliveryCount": "99"})

    queue.receive(handler=f"{__name__}:note_delivery", isolation=isolation)

    assert (tmp_path / "seen").read_text().splitlines() == seen
