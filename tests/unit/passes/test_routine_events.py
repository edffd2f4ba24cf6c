"""With ``record_all`` a pass tells every delivery, in the order and with the counts of the replay."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.events import ROUTINE
from tests.given.passes import NoEngine

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy
    from tests.given.passes import Queue

with warnings.catch_warnings(action="ignore"):
    AT_MOST_ONCE = Msmq4(transaction_scope_required=False)
    NOBODY_READS = ServiceBroker(max_queue_readers=0)
    NOBODY_READS_AND_NOTHING_COUNTS = ServiceBroker(max_queue_readers=0, poison_message_handling=False)


def routine(queue: Queue) -> list[tuple[str, int]]:
    return [(event.type.value, event.abort_count) for event in queue.table.events() if event.type in ROUTINE]


def test_what_its_handler_gave_back_was_delivered(queue: Queue) -> None:
    queue.sent("later").receive(record_all=True)

    assert routine(queue) == [("DELIVERED", 0)]


def test_wcf_37_a_message_without_a_transaction_around_its_call_is_committed_first(queue: Queue) -> None:
    queue.sent("good").receive(policy=AT_MOST_ONCE, record_all=True)

    assert routine(queue) == [("COMMITTED", 0), ("DELIVERED", 0)]


def test_wmq_24_a_message_that_can_never_succeed_is_told_as_its_system_counts_it(queue: Queue) -> None:
    queue.sent("never").receive(policy=ListenerPort(), record_all=True)

    assert routine(queue) == [("DELIVERED", 0), ("ROLLED_BACK", 0)]


@pytest.mark.parametrize("policy", [NOBODY_READS, NOBODY_READS_AND_NOTHING_COUNTS], ids=["counted", "not counted"])
def test_sb_23_where_nobody_reads_nothing_is_received(queue: Queue, policy: Policy) -> None:
    result = queue.sent("good").receive(policy=policy, engine=NoEngine())

    assert (result.received, result.passes) == (0, 0)
    assert len(queue.rows()) == 1
