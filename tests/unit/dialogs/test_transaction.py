"""What a handler does with the conversation of its message, without a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from airflow_poison import Message, track_failures
from airflow_poison.dialogs.acts import ConversationState, target_handle
from airflow_poison.dialogs.services import Contract, SentBy
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument
from airflow_poison.testing import conversation
from airflow_poison.values.errors import (
    ConversationEndedError,
    ConversationError,
    ConversationNotFoundError,
    ConversationSendError,
    ConversationTimerError,
    InputError,
    SettingError,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE_ANSWER = Contract("Ordering", {"Order": SentBy.INITIATOR, "Answer": SentBy.TARGET})


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("grün", "grün".encode()),
        ({"price": 3}, b'{"price": 3}'),
        (None, b"null"),
        (bytearray(b"a"), b"a"),
        ([], b"[]"),
        ({"price": Decimal("1.10"), "at": NOW}, b'{"price": 1.10, "at": "2026-01-01T00:00:00.000Z"}'),
    ],
)
def test_a_body_is_bytes_text_or_json(body: object, sent: bytes) -> None:
    talk = conversation()
    talk.reply(body)
    assert [message.body for message in talk.sent] == [sent]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({1}, "set cannot become JSON"),
        ([float("nan")], "it has no NaN"),
        ({1: 2, "1": 3}, "are one name"),
        ({"a": "\ud800"}, "surrogates not allowed"),
        ("\ud800", "has a lone surrogate"),
    ],
)
def test_a_body_that_cannot_be_sent_changes_nothing(body: object, why: str) -> None:
    talk = conversation()
    with pytest.raises(InputError, match=why):
        talk.send(body)
    assert talk.sent == ()
    assert talk.close() is None


def test_the_type_may_be_left_out_where_the_contract_has_one() -> None:
    talk = conversation(contract=ONE_ANSWER)
    talk.reply("yes")
    assert [(message.message_type, message.envelope.sequence) for message in talk.sent] == [("Answer", 1)]

    with pytest.raises(SettingError, match=r"message_type=None.*Answer, Question"):
        conversation(["Question", "Answer"]).reply("yes")


def test_sb_36_a_type_that_this_side_may_not_send() -> None:
    with pytest.raises(SettingError, match="Order"):
        conversation(contract=ONE_ANSWER).send("x", "Order")


def test_sb_e6_8429_in_the_state_that_the_partners_end_leaves() -> None:
    for state in ("DI", "ER"):
        with pytest.raises(ConversationSendError, match=f"8429.*{state}"):
            conversation(state=state).reply("late")


def test_sb_54_an_end_that_drops_what_is_unsent_drops_what_the_same_delivery_has_sent() -> None:
    failed, cleaned, ended = conversation(), conversation(), conversation()
    for each in (failed, cleaned, ended):
        each.reply("first")
    failed.end(7, "no")
    cleaned.end_with_cleanup()
    ended.end()
    assert [[sent.message_type for sent in each.sent] for each in (failed, cleaned, ended)] == [[ERROR], [], ["DEFAULT", END_DIALOG]]
    assert failed.sent[0].envelope.sequence == 2, "the number of a message is never used again"


def test_sb_54_e13_ends() -> None:
    ended = conversation()
    ended.end()
    assert (ended.state, ended.is_open, ended.sent[0].message_type) == (ConversationState.DISCONNECTED_OUTBOUND, False, END_DIALOG)
    with pytest.raises(ConversationEndedError, match="8427"):
        ended.end()
    with pytest.raises(ConversationSendError, match="8429"):
        ended.reply("late")

    failed = conversation()
    failed.end(127, "Unable to process message.")
    assert ErrorDocument.from_xml(failed.sent[0].body) == ErrorDocument(127, "Unable to process message.")
    with pytest.raises(ConversationNotFoundError, match="8426"):
        failed.end()
    for code in (0, -5):
        with pytest.raises(SettingError, match="error="):
            conversation().end(code)

    cleaned = conversation()
    cleaned.end_with_cleanup()
    assert cleaned.sent == (), "the partner is told nothing"
    change = cleaned.close()
    assert change is not None
    assert change.endpoint.cleaned


@pytest.mark.parametrize("timeout", [60, 60.0, timedelta(minutes=1)])
def test_sb_56_a_timer_set_again_starts_again(timeout: Any) -> None:
    talk = conversation(now=NOW)
    talk.set_timer(10)
    talk.set_timer(timeout)
    change = talk.close()
    assert change is not None
    assert (change.endpoint.timer_at, change.endpoint.timer_number, change.sent) == (NOW + timedelta(minutes=1), 2, ())


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "60"])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    with pytest.raises(SettingError, match="timeout"):
        conversation().set_timer(timeout)


def test_8458_no_timer_on_a_conversation_with_an_error() -> None:
    with pytest.raises(ConversationTimerError, match="8458"):
        conversation(state="ER").set_timer(1)


def test_sb_58_what_was_done_before_the_savepoint_is_undone() -> None:
    talk = conversation(failures=1)
    talk.reply("no")
    talk.set_timer(60)
    talk.roll_back_to_savepoint()
    assert not talk.track_failure()

    change = talk.close()
    assert change is not None
    assert (change.endpoint.failures, change.endpoint.timer_at, change.endpoint.sent, change.sent) == (2, None, 0, ())


def test_sb_59_the_failure_after_the_last_forgiven_one_ends_it() -> None:
    talk = conversation(failures=3)
    assert talk.track_failure()
    assert talk.failures == 0
    assert ErrorDocument.from_xml(talk.sent[0].body) == ErrorDocument(500, "Unable to process message.")


def test_what_was_not_done_is_no_change() -> None:
    talk = conversation()
    talk.clear_failures()
    assert talk.close() is None
    back = conversation()
    back.reply("no")
    back.roll_back_to_savepoint()
    assert back.close() is None


def test_no_verb_acts_when_the_delivery_is_over() -> None:
    talk = conversation()
    talk.reply("yes")
    talk.close()
    verbs: list[Any] = [talk.reply, talk.send, talk.end, talk.end_with_cleanup, talk.roll_back_to_savepoint, talk.track_failure, talk.clear_failures]
    for verb in [*verbs, lambda: talk.set_timer(1)]:
        with pytest.raises(ConversationError, match="the delivery of this message has ended"):
            verb()
    assert len(talk.sent) == 1
    assert talk.state is ConversationState.CONVERSING, "it can be read"


def test_64_mib_in_one_delivery() -> None:
    talk = conversation()
    talk.reply(bytes(40 << 20))
    with pytest.raises(InputError, match="67,108,864 bytes"):
        talk.reply(bytes((24 << 20) + 1))
    talk.reply(bytes(24 << 20))


def test_what_is_sent_needs_no_module_of_the_handler() -> None:
    """It travels to a process that cannot import it: members of enumerations become plain texts, subclasses of bytes plain bytes."""

    class Kind(StrEnum):
        ANSWER = "Answer"

    class Odd(bytes):
        __slots__ = ()

        def __bytes__(self) -> bytes:
            return self

    talk = conversation(["Answer"])
    talk.send(Odd(b"a"), Kind.ANSWER)
    talk.end(5, Kind.ANSWER)

    assert {type(sent.message_type) for sent in talk.sent} == {str}
    assert {type(sent.body) for sent in talk.sent} == {bytes}


def test_a_contract_that_its_service_has_lost() -> None:
    talk = conversation(["Answer"])
    talk._services = {}
    with pytest.raises(SettingError, match=r"contract.*'Contract'.*service 'Service'"):
        talk.reply("yes")


def test_what_it_is() -> None:
    talk = conversation(is_initiator=True)
    assert (talk.handle, talk.conversation_id, talk.service, talk.far_service) == ("a-conversation", "a-conversation", "Service", "FarService")
    assert (talk.is_initiator, talk.contract, talk.priority, talk.expires_at) == (True, "DEFAULT", 5, None)
    assert repr(talk) == "Conversation(handle='a-conversation', state=CO, service='Service', far_service='FarService')"
    assert conversation().group_id == target_handle("a-conversation")


# Messages -------------------------------------------------------------------------------------------------------------


def test_messages_say_what_the_broker_means() -> None:
    document = ErrorDocument(12, "Unknown cost center")
    failed = Message(document.to_xml(), message_type=ERROR, conversation=conversation(state="ER"))
    assert (failed.is_system, failed.is_error, failed.is_end_dialog, failed.is_timer, failed.error) == (True, True, False, False, document)
    assert Message(message_type=END_DIALOG).is_end_dialog
    assert Message(message_type=DIALOG_TIMER).is_timer
    assert Message(message_type=ERROR.replace("https", "http")).is_error

    plain = Message(b"x", message_type="Order")
    assert (plain.is_system, plain.error, plain.conversation) == (False, None, None)


def test_sb_e11_what_is_no_error_document_has_code_0() -> None:
    error = Message(b"<Fault/>", message_type=ERROR).error
    assert error is not None
    assert error.code == 0
    assert "Fault" in error.description


def test_a_message_of_a_dialog_knows_its_group() -> None:
    talk = conversation()
    message = Message(b"x", conversation=talk)
    assert message.conversation is talk
    assert (message.group_id, message.conversation_id) == (talk.group_id, talk.handle)


# Failures -------------------------------------------------------------------------------------------------------------


def failing(message: Message) -> None:
    raise ValueError(message.text)


def fine(message: Message) -> None:
    assert message.conversation is not None
    message.conversation.reply({"got": message.text})


def test_sb_e10_a_success_clears_the_count() -> None:
    talk = conversation(failures=2)
    track_failures(fine)(Message(b"x", conversation=talk))
    assert talk.failures == 0
    assert not talk.is_at_savepoint
    assert json.loads(talk.sent[0].body) == {"got": "x"}


def test_sb_e10_a_failure_is_counted_at_the_savepoint() -> None:
    talk = conversation(failures=2)
    track_failures(failing)(Message(b"x", conversation=talk))
    assert (talk.failures, talk.is_at_savepoint, talk.is_open) == (3, True, True)


@pytest.mark.parametrize(("kind", "state"), [(ERROR, "ER"), (END_DIALOG, "DI")])
def test_sb_e10_the_partners_end_ends_it_and_clears(kind: str, state: str) -> None:
    talk = conversation(state=state, failures=2)
    track_failures(failing)(Message(b"", message_type=kind, conversation=talk))
    assert (talk.failures, talk.state) == (0, ConversationState.CLOSED)


def test_a_tracked_handler_takes_plain_messages_too() -> None:
    with pytest.raises(ValueError, match="plain"):
        track_failures(failing)(Message(b"plain"))


def test_a_limit_that_is_none() -> None:
    with pytest.raises(SettingError, match="max_failures"):
        track_failures(failing, -1)


def test_an_endpoint_that_only_counts_is_another_version() -> None:
    talk = conversation()
    talk.track_failure()
    change = talk.close()
    assert change is not None
    assert replace(change.endpoint, failures=0, version=0) == talk._begun.saved
