"""The columns of a queue's status, what a disabled queue refuses, and the order of a recovery."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from airflow_poison.passes.alerts import EVENTS, AlertKind
from airflow_poison.rules.queue_disabling import REMOVAL, QueueStatus, RecoveryOrder, RecoveryStep, Statement
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.events import EventType

COLUMNS = ("is_receive_enabled", "is_enqueue_enabled", "is_poison_message_handling_enabled", "is_activation_enabled")


def columns(status: QueueStatus) -> tuple[int, ...]:
    return tuple(int(getattr(status, column)) for column in COLUMNS)


def test_sb_12_sb_e14_the_columns_of_a_queue_that_is_disabled_and_set_to_on_again() -> None:
    created = ServiceBroker().status(on=True, activation=True)

    assert columns(created) == (1, 1, 1, 1)
    assert columns(created.switched(on=False)) == (0, 0, 1, 1)
    assert created.switched(on=False).switched(on=True) == created
    assert ServiceBroker().status(on=False, activation=True) == created.switched(on=False)


def test_sb_11_sb_e14_poison_handling_off_changes_its_own_column_only() -> None:
    off = ServiceBroker.from_dict({"poison_message_handling": False})

    assert columns(off.status(on=True, activation=True)) == (1, 1, 0, 1)


@pytest.mark.parametrize("activation", [True, False])
def test_sb_12_activation_keeps_its_value(activation: bool) -> None:  # noqa: FBT001  (a parameter of the test)
    assert ServiceBroker().status(on=False, activation=activation).is_activation_enabled is activation


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        pytest.param(Statement.RECEIVE, 9617, id="SB-18 RECEIVE"),
        pytest.param(Statement.GET_CONVERSATION_GROUP, 9617, id="SB-18 GET CONVERSATION GROUP"),
        pytest.param(Statement.SEND, None, id="SB-20"),
        pytest.param(Statement.END_CONVERSATION, None, id="SB-21"),
    ],
)
def test_what_a_disabled_queue_refuses(statement: Statement, error: int | None) -> None:
    assert QueueStatus().switched(on=False).error(statement) == error


def test_sb_20_a_disabled_queue_with_retention_refuses_to_send() -> None:
    retaining = QueueStatus(is_retention_enabled=True).switched(on=False)

    assert retaining.error(Statement.SEND) == 9618
    assert retaining.error(Statement.END_CONVERSATION) is None


def test_sb_18_a_queue_that_is_on_refuses_nothing() -> None:
    for statement, retention in product(Statement, [True, False]):
        assert replace(QueueStatus(), is_retention_enabled=retention).error(statement) is None


def test_sb_19_nothing_is_added_to_a_disabled_queue_and_no_sender_is_told() -> None:
    disabled = QueueStatus().switched(on=False)

    assert not disabled.is_enqueue_enabled
    assert disabled.error(Statement.SEND) is None


def test_sb_14_people_can_be_told_when_a_queue_becomes_disabled() -> None:
    assert EVENTS[EventType.QUEUE_DISABLED] is AlertKind.QUEUE_DISABLED


def test_sb_26_a_poison_message_is_removed_by_ending_its_conversation_with_an_error() -> None:
    assert (REMOVAL.error, REMOVAL.description) == (127, "Unable to process message.")


def test_sb_34_the_conversation_ends_first_unless_the_source_s_order_is_wanted() -> None:
    end, enable = RecoveryStep.END_CONVERSATION, RecoveryStep.ENABLE

    assert ServiceBroker().recovery_order is RecoveryOrder.END_THEN_ENABLE
    assert RecoveryOrder.END_THEN_ENABLE.steps == (end, enable)
    assert RecoveryOrder("enable_then_end").steps == (enable, end)
