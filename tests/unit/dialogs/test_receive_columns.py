"""A message as RECEIVE would show it."""

from __future__ import annotations

import pytest

from airflow_poison.dialogs.acts import Envelope
from airflow_poison.dialogs.as_rows import StatusInQueue, StatusInReceive, received_row
from airflow_poison.dialogs.services import Contract, MessageType, Service
from airflow_poison.dialogs.system_messages import END_DIALOG
from airflow_poison.values.message import Message
from airflow_poison.values.schema import DIALOG

SERVICE = Service("//Target", [Contract("//c", {"//order": "INITIATOR", "//raw": "ANY"}, [MessageType("//order", "X")])])
ENVELOPE = Envelope(
    conversation_id="c1", from_initiator=True, from_service="//Initiator", to_service="//Target", contract="//c", group="g1", sequence=3
)


def row(message_type: str, body: bytes, status: StatusInQueue | StatusInReceive = StatusInQueue.READY) -> dict[str, object]:
    message = Message(
        body,
        lookup_id=7,
        priority=9,
        group_id="g",
        conversation_id="h",
        message_type=message_type,
        properties={DIALOG: ENVELOPE.to_text()},
    )
    return received_row(message, {"//Target": SERVICE}, status)


def test_sb_50_the_columns_stand_in_the_order_of_the_manual() -> None:
    assert row("//order", b"<a/>") == {
        "status": 1,
        "priority": 9,
        "queuing_order": 7,
        "conversation_group_id": "g",
        "conversation_handle": "h",
        "message_sequence_number": 3,
        "service_name": "//Target",
        "service_id": None,
        "service_contract_name": "//c",
        "service_contract_id": None,
        "message_type_name": "//order",
        "message_type_id": None,
        "validation": "X ",
        "message_body": b"<a/>",
    }
    names = "status priority queuing_order conversation_group_id conversation_handle message_sequence_number service_name service_id "
    names += "service_contract_name service_contract_id message_type_name message_type_id validation message_body"
    assert list(row("//order", b"")) == names.split()


def test_sb_51_status_numbers_are_those_of_the_queue_or_of_receive() -> None:
    assert {status.name: int(status) for status in StatusInQueue} == {"RECEIVED": 0, "READY": 1, "INCOMPLETE": 2, "SENT": 3}
    assert {status.name: int(status) for status in StatusInReceive} == {"READY": 0, "RECEIVED": 1}
    assert row("//order", b"", StatusInReceive.READY)["status"] == 0


@pytest.mark.parametrize(
    ("message_type", "letter"),
    [("//order", "X "), ("//raw", "N "), (END_DIALOG, "E "), (END_DIALOG.replace("https", "http"), "E "), ("//gone", "N ")],
)
def test_sb_52_validation_is_that_of_the_message_type_two_characters_wide(message_type: str, letter: str) -> None:
    assert row(message_type, b"")["validation"] == letter


def test_an_empty_body_is_null() -> None:
    assert row(END_DIALOG, b"")["message_body"] is None


def test_sb_52_a_message_of_a_service_that_is_gone_has_no_validation() -> None:
    assert received_row(Message(properties={DIALOG: ENVELOPE.to_text()}), {})["validation"] == "N "


def test_a_message_of_no_conversation_has_no_such_columns() -> None:
    with pytest.raises(ValueError, match=r"message 7 belongs to no conversation"):
        received_row(Message(lookup_id=7), {})
