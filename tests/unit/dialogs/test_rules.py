"""What acts and arrivals make of a conversation endpoint (spec sections 1.5 and 1.7)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from airflow_poison.dialogs import acts, arrivals
from airflow_poison.dialogs.acts import Change, ConversationEndpoint, ConversationState, Envelope, Final, Outgoing
from airflow_poison.dialogs.arrivals import Discarded, Handed
from airflow_poison.dialogs.services import Contract, MessageType, Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument
from airflow_poison.values.errors import (
    ConversationEndedError,
    ConversationNotFoundError,
    ConversationSendError,
    ConversationTimerError,
    SettingError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

S = ConversationState
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PARTS = Contract(
    "parts",
    {"order": "INITIATOR", "shipped": "TARGET", "question": "ANY", "paper": "INITIATOR"},
    [MessageType("paper", "X"), MessageType("question", "N", {"type": "object"})],
)
WAREHOUSE = {"Warehouse": Service("Warehouse", [PARTS])}


def begun(**given: object) -> ConversationEndpoint:
    dialog = acts.Dialog(messages=(), **given)  # type: ignore[arg-type]
    return acts.begin("d1", dialog, service="Orders", far_service="Warehouse", contract="parts", now=NOW)


def in_state(state: ConversationState) -> ConversationEndpoint:
    return replace(begun(), state=state, sent=0 if state is S.STARTED_OUTBOUND else 1)


def first(message_type: str = "order", body: bytes = b"bolt") -> Outgoing:
    """Return the first message of d1, as it leaves the initiator."""
    return acts.send(begun(), message_type, body, PARTS).sent[0]


def accepted(message: Outgoing | None = None) -> ConversationEndpoint:
    """Return the target's side when it has received the first message."""
    reception = arrivals.receive(None, message or first(), WAREHOUSE)
    assert isinstance(reception, Handed)
    return reception.endpoint


def from_initiator(message_type: str, body: bytes = b"", sequence: int = 2) -> Outgoing:
    return replace(first(), message_type=message_type, body=body, envelope=replace(first().envelope, sequence=sequence))


def error(code: int = 127, sequence: int = 2) -> Outgoing:
    return from_initiator(ERROR, ErrorDocument(code, "no").to_xml(), sequence)


def test_sb_55_both_sides_go_through_their_states() -> None:
    initiator = begun()
    assert initiator.state is S.STARTED_OUTBOUND
    sent = acts.send(initiator, "order", b"bolt", PARTS)
    assert sent.endpoint.state is S.CONVERSING
    target = accepted(sent.sent[0])
    assert (target.state, target.is_initiator, target.service, target.far_service) == (S.CONVERSING, False, "Warehouse", "Orders")
    ended = acts.end(target)
    assert ended.endpoint.state is S.DISCONNECTED_OUTBOUND
    told = arrivals.receive(sent.endpoint, ended.sent[0], {})
    assert isinstance(told, Handed)
    assert told.endpoint.state is S.DISCONNECTED_INBOUND
    over = acts.end(told.endpoint)
    assert over.endpoint.state is S.CLOSED
    (acknowledgement,) = over.sent
    heard = arrivals.receive(ended.endpoint, acknowledgement, WAREHOUSE)
    assert isinstance(heard, Discarded)
    assert heard.change is not None
    assert heard.change.endpoint.state is S.CLOSED


def test_each_side_has_a_handle_and_a_group_of_its_own() -> None:
    initiator = begun(group_id="orders of today")
    target = accepted(acts.send(initiator, "order", b"", PARTS).sent[0])
    assert initiator.handle == initiator.conversation_id == target.far_handle
    assert target.handle == initiator.far_handle != initiator.handle
    assert (initiator.group_id, target.group_id) == ("orders of today", target.handle)
    assert acts.send(target, "shipped", b"", PARTS).sent[0].envelope.to_group == "orders of today"


@pytest.mark.parametrize(
    ("state", "letters"),
    [(S.DISCONNECTED_INBOUND, "DI"), (S.DISCONNECTED_OUTBOUND, "DO"), (S.ERROR, "ER")],
)
def test_sb_43_nothing_is_sent_after_an_end_or_an_error(state: ConversationState, letters: str) -> None:
    with pytest.raises(ConversationSendError, match=f"Error 8429(?s:.*)state {letters}") as refused:
        acts.send(in_state(state), "order", b"", PARTS)
    assert (refused.value.number, refused.value.state) == (8429, letters)


@pytest.mark.parametrize(
    "act", [lambda e: acts.send(e, "order", b"", PARTS), acts.end, acts.end_with_cleanup, lambda e: acts.set_timer(e, MINUTE, NOW)]
)
def test_sb_54_an_endpoint_that_both_sides_have_ended_is_not_found(act: Callable[[ConversationEndpoint], object]) -> None:
    with pytest.raises(ConversationNotFoundError, match="8426"):
        act(in_state(S.CLOSED))


@pytest.mark.parametrize(
    ("waiting", "state"),
    [
        pytest.param(["order", ERROR, "order", DIALOG_TIMER], "ER", id="SB-E6 a, Error, b, DialogTimer"),
        pytest.param(["order", END_DIALOG, DIALOG_TIMER], "DI", id="SB-E6 a, EndDialog, DialogTimer"),
        pytest.param([ERROR, DIALOG_TIMER], "ER", id="SB-E6 Error, DialogTimer"),
        pytest.param(["order", "order", END_DIALOG], "DI", id="SB-E6 a, b, EndDialog"),
        pytest.param([ERROR.replace("https", "http")], "ER", id="SB-E6 the engine's spelling"),
    ],
)
def test_sb_e6_send_is_refused_as_soon_as_it_has_arrived(waiting: list[str], state: str) -> None:
    with pytest.raises(ConversationSendError, match="8429") as refused:
        acts.send(arrivals.arrived(in_state(S.CONVERSING), waiting), "order", b"", PARTS)
    assert refused.value.state == state


def test_sb_e6_a_timer_that_has_expired_keeps_nobody_from_sending() -> None:
    assert acts.send(arrivals.arrived(in_state(S.CONVERSING), ["order", DIALOG_TIMER]), "order", b"", PARTS).sent


def test_sb_43_what_was_sent_before_the_error_is_received_behind_it() -> None:
    target = accepted()
    received = arrivals.receive(target, error(sequence=4), WAREHOUSE)
    assert isinstance(received, Handed)
    assert (received.endpoint.state, received.endpoint.error_code) == (S.ERROR, 127)
    behind = arrivals.receive(received.endpoint, from_initiator("order", sequence=2), WAREHOUSE)
    assert isinstance(behind, Handed)
    assert behind.endpoint.state is S.ERROR


def test_sb_44_an_end_without_an_error_sends_end_dialog_behind_what_is_pending() -> None:
    change = acts.end(acts.send(begun(), "order", b"", PARTS).endpoint)
    (message,) = change.sent
    assert (message.message_type, message.body, message.envelope.sequence, message.envelope.final) == (END_DIALOG, b"", 2, Final.NO)


def test_sb_32_an_end_with_an_error_tells_the_partner_code_and_text() -> None:
    change = acts.end(accepted(), error=127, description="Unable to process message.")
    (message,) = change.sent
    document = ErrorDocument.from_xml(message.body)
    assert (message.message_type, document.code, document.description) == (ERROR, 127, "Unable to process message.")
    assert (message.envelope.final, change.endpoint.state) == (Final.ERROR, S.CLOSED)


@pytest.mark.parametrize("code", [None, 9])
def test_sb_54_nothing_is_sent_to_a_partner_that_never_heard_of_the_dialog(code: int | None) -> None:
    change = acts.end(begun(), error=code)
    assert (change.sent, change.endpoint.state) == ((), S.CLOSED)


@pytest.mark.parametrize("state", [S.DISCONNECTED_INBOUND, S.ERROR])
@pytest.mark.parametrize("code", [None, 9])
@pytest.mark.parametrize("partner", list(S))
def test_sb_54_a_partner_that_has_ended_receives_nothing_and_its_broker_hears_that_both_have(
    state: ConversationState, code: int | None, partner: ConversationState
) -> None:
    change = acts.end(in_state(state), error=code)
    assert change.endpoint.state is S.CLOSED
    (message,) = change.sent
    reception = arrivals.receive(replace(accepted(), state=partner), message, WAREHOUSE)
    assert isinstance(reception, Discarded)
    after = None if reception.change is None else (reception.change.endpoint.state, reception.change.sent)
    assert after == ((S.CLOSED, ()) if partner is S.DISCONNECTED_OUTBOUND else None)
    assert arrivals.receive(None, message, WAREHOUSE) == Discarded("the conversation endpoint is gone")


@pytest.mark.parametrize("code", [0, -5, 2**31, True])
def test_sb_e13_a_code_that_is_not_above_zero_is_rejected(code: int) -> None:
    with pytest.raises(SettingError, match="error"):
        acts.end(accepted(), error=code)


def test_sb_54_a_description_has_at_most_3000_characters_and_an_error() -> None:
    assert acts.end(accepted(), error=1, description="x" * 3000).sent
    with pytest.raises(SettingError, match="3,000"):
        acts.end(accepted(), error=1, description="x" * 3001)
    with pytest.raises(SettingError, match="together with an error"):
        acts.end(accepted(), description="why")


def test_sb_e13_end_twice_is_8427_while_the_partner_has_not_ended_and_8426_afterwards() -> None:
    once = acts.end(accepted()).endpoint
    with pytest.raises(ConversationEndedError, match="8427"):
        acts.end(once)
    over = arrivals.receive(once, from_initiator(END_DIALOG), WAREHOUSE)
    assert isinstance(over, Discarded)
    assert over.change is not None
    with pytest.raises(ConversationNotFoundError, match="8426"):
        acts.end(over.change.endpoint)


@pytest.mark.parametrize("ended", [acts.end, lambda endpoint: acts.end(endpoint, error=127)])
@pytest.mark.parametrize("message", [from_initiator("order"), from_initiator("order", sequence=3)], ids=["a2", "a3"])
def test_sb_55_what_arrives_for_an_ended_conversation_is_discarded(ended: Callable[[ConversationEndpoint], Change], message: Outgoing) -> None:
    reception = arrivals.receive(ended(accepted()).endpoint, message, WAREHOUSE)
    assert isinstance(reception, Discarded)
    assert reception.change is None


def test_sb_54_cleanup_tells_nobody_and_whoever_sends_afterwards_hears_8462() -> None:
    change = acts.end_with_cleanup(accepted())
    assert [message.envelope.final for message in change.sent] == [Final.CLEANUP]  # it never leaves
    late = arrivals.receive(change.endpoint, from_initiator("order"), WAREHOUSE)
    assert isinstance(late, Discarded)
    assert late.change is not None
    assert [ErrorDocument.from_xml(message.body).code for message in late.change.sent] == [-8462]
    silent = arrivals.receive(change.endpoint, error(), WAREHOUSE)
    assert isinstance(silent, Discarded)
    assert silent.change is None


def test_sb_57_a_message_for_an_endpoint_that_nobody_knows_is_answered_with_8462_and_an_error_is_not() -> None:
    gone = arrivals.receive(None, from_initiator("order", sequence=5), WAREHOUSE)
    assert isinstance(gone, Discarded)
    assert gone.change is not None
    (answer,) = gone.change.sent
    assert (ErrorDocument.from_xml(answer.body).code, answer.envelope.to_handle) == (-8462, "d1")
    assert arrivals.receive(None, error(), WAREHOUSE) == Discarded("the conversation endpoint is gone", None)


def test_sb_56_setting_the_timer_again_before_it_expires_makes_the_first_one_void() -> None:
    """SB-E13: TIMER 60 at t=0, again 60 at t=30: DialogTimer at t=90 only, at this side only."""
    once = acts.set_timer(begun(), timedelta(seconds=60), NOW)
    twice = acts.set_timer(once.endpoint, timedelta(seconds=60), NOW + timedelta(seconds=30))
    assert (once.sent, twice.sent) == ((), ())  # the partner gets nothing (SB-45)
    assert arrivals.due(twice.endpoint, NOW + timedelta(seconds=89)) == ()
    (message,) = arrivals.due(twice.endpoint, NOW + timedelta(seconds=90))
    assert (message.message_type, message.body, message.envelope.to_handle) == (DIALOG_TIMER, b"", twice.endpoint.handle)
    assert isinstance(arrivals.receive(twice.endpoint, message, {}), Handed)
    (void,) = arrivals.due(once.endpoint, NOW + timedelta(seconds=60))
    assert isinstance(arrivals.receive(twice.endpoint, void, {}), Discarded)


def test_sb_56_a_timer_whose_message_was_put_off_is_not_due_again_and_is_received_when_it_is_back() -> None:
    target = acts.set_timer(accepted(), MINUTE, NOW).endpoint
    (fired,) = arrivals.due(target, NOW + MINUTE)
    put_off = arrivals.remembered(target, fired)
    assert (put_off.due_at, arrivals.due(put_off, NOW + MINUTE)) == (None, ())
    back = arrivals.receive(put_off, fired, WAREHOUSE)
    assert isinstance(back, Handed)
    assert isinstance(arrivals.receive(back.endpoint, fired, WAREHOUSE), Discarded), "once"


def test_sb_22_sb_56_a_timer_that_had_expired_when_it_was_set_again_is_received_and_the_new_one_runs_from_there() -> None:
    """Timer of 10 s at 0, of 20 s at 15: the first message is there at 20, the second one at 35."""
    first = acts.set_timer(begun(), timedelta(seconds=10), NOW)
    second = acts.set_timer(first.endpoint, timedelta(seconds=20), NOW + timedelta(seconds=15))
    assert second.endpoint.timer_at == NOW + timedelta(seconds=35)
    assert second.endpoint.due_at == NOW + timedelta(seconds=10), "whoever watches the queue sees that a message is due"
    assert ConversationEndpoint.from_dict(json.loads(json.dumps(second.endpoint.to_dict()))) == second.endpoint
    (one,) = arrivals.due(second.endpoint, NOW + timedelta(seconds=20))
    again, other = arrivals.due(second.endpoint, NOW + timedelta(seconds=35))
    assert arrivals.local_key(again) == arrivals.local_key(one) != arrivals.local_key(other)
    received = arrivals.receive(second.endpoint, one, {})
    assert isinstance(received, Handed)
    assert received.endpoint.due_at == NOW + timedelta(seconds=35)
    assert isinstance(arrivals.receive(received.endpoint, one, {}), Discarded), "once"
    assert isinstance(arrivals.receive(received.endpoint, other, {}), Handed)


def test_sb_56_each_timer_that_had_expired_counts_and_those_set_again_before_do_not() -> None:
    endpoint = begun()
    for at in (0, 10, 15, 30):  # each runs for 10 s: the second one is set again before it expires
        endpoint = acts.set_timer(endpoint, timedelta(seconds=10), NOW + timedelta(seconds=at)).endpoint
    assert [message.envelope.timer for message in arrivals.due(endpoint, NOW + timedelta(seconds=40))] == [1, 3, 4]


def test_sb_56_a_postponed_timer_message_is_received_also_when_the_timer_was_set_again() -> None:
    target = acts.set_timer(accepted(), MINUTE, NOW).endpoint
    (fired,) = arrivals.due(target, NOW + MINUTE)
    again = acts.set_timer(arrivals.remembered(target, fired), MINUTE, NOW + MINUTE).endpoint
    assert again.due_at == NOW + 2 * MINUTE, "the postponed message comes back by itself"
    put_off_again = arrivals.remembered(again, fired)
    assert put_off_again.due_at == NOW + 2 * MINUTE, "it is not the timer that runs"
    back = arrivals.receive(put_off_again, fired, WAREHOUSE)
    assert isinstance(back, Handed)
    assert back.endpoint.timer_at == NOW + 2 * MINUTE


def test_sb_56_a_timer_message_that_people_have_removed_is_due_until_that_of_a_later_timer_is_received() -> None:
    first = acts.set_timer(begun(), MINUTE, NOW).endpoint
    second = acts.set_timer(first, MINUTE, NOW + MINUTE).endpoint
    one, two = arrivals.due(second, NOW + 2 * MINUTE)
    received = arrivals.receive(second, two, {})
    assert isinstance(received, Handed)
    assert received.endpoint.due_at is None
    assert isinstance(arrivals.receive(received.endpoint, one, {}), Handed), "when they put it back"


def test_an_endpoint_that_an_earlier_release_has_stored_with_a_postponed_timer_receives_its_message() -> None:
    target = acts.set_timer(accepted(), MINUTE, NOW).endpoint
    (fired,) = arrivals.due(target, NOW + MINUTE)
    stored = replace(target, timer_at=None).to_dict() | {"timer_put_off": True}
    endpoint = ConversationEndpoint.from_dict(stored)
    assert endpoint.due_at is None
    assert isinstance(arrivals.receive(endpoint, fired, WAREHOUSE), Handed)


def test_sb_45_a_timer_message_is_received_once() -> None:
    timed = acts.set_timer(begun(), MINUTE, NOW).endpoint
    (message,) = arrivals.due(timed, NOW + MINUTE)
    received = arrivals.receive(timed, message, {})
    assert isinstance(received, Handed)
    assert arrivals.due(received.endpoint, NOW + 2 * MINUTE) == ()
    assert isinstance(arrivals.receive(received.endpoint, message, {}), Discarded)


@pytest.mark.parametrize("state", [S.ERROR, S.DISCONNECTED_OUTBOUND])
def test_sb_57_no_timer_in_a_state_that_ends_error_8458(state: ConversationState) -> None:
    with pytest.raises(ConversationTimerError, match=f"8458(?s:.*){state.value}"):
        acts.set_timer(in_state(state), MINUTE, NOW)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1)])
def test_sb_56_a_timeout_is_above_zero(timeout: timedelta) -> None:
    with pytest.raises(SettingError, match="timeout"):
        acts.set_timer(begun(), timeout, NOW)


def test_a_lifetime_that_ends_is_an_error_8489_at_both_ends() -> None:
    """Section 11.1."""
    sent = acts.send(begun(lifetime=MINUTE), "order", b"", PARTS)
    for side in (sent.endpoint, accepted(sent.sent[0])):
        assert arrivals.due(side, NOW + MINUTE - timedelta(microseconds=1)) == ()
        (message,) = arrivals.due(side, NOW + MINUTE)
        assert (ErrorDocument.from_xml(message.body).code, message.envelope.to_handle) == (-8489, side.handle)
        received = arrivals.receive(side, message, {})
        assert isinstance(received, Handed)
        assert received.endpoint.state is S.ERROR
        assert arrivals.due(received.endpoint, NOW + 2 * MINUTE) == ()


def test_a_side_that_ends_after_the_partners_lifetime_error_is_acknowledged_however_early_the_partner_has_ended() -> None:
    sent = acts.send(begun(lifetime=MINUTE), "order", b"", PARTS)
    target = accepted(sent.sent[0])
    timed_out = arrivals.receive(sent.endpoint, arrivals.due(sent.endpoint, NOW + MINUTE)[0], {})
    assert isinstance(timed_out, Handed)
    over = acts.end(timed_out.endpoint)
    too_early = arrivals.receive(target, over.sent[0], WAREHOUSE)
    assert too_early == Discarded("the conversation was ended")
    ended = acts.end(target)
    heard = arrivals.receive(over.endpoint, ended.sent[0], {})
    assert isinstance(heard, Discarded)
    assert heard.change is not None
    (again,) = heard.change.sent
    told = arrivals.receive(ended.endpoint, again, WAREHOUSE)
    assert isinstance(told, Discarded)
    assert told.change is not None
    assert (heard.change.endpoint.state, told.change.endpoint.state) == (S.CLOSED, S.CLOSED)
    assert arrivals.receive(told.change.endpoint, over.sent[0], WAREHOUSE) == Discarded("the conversation was ended")


@pytest.mark.parametrize("ended", [acts.end, acts.end_with_cleanup])
def test_sb_22_a_conversation_that_this_side_has_ended_has_neither_timer_nor_lifetime(ended: Callable[[ConversationEndpoint], Change]) -> None:
    endpoint = acts.set_timer(accepted(acts.send(begun(lifetime=MINUTE), "order", b"", PARTS).sent[0]), MINUTE, NOW).endpoint
    after = ended(endpoint).endpoint
    assert after.timer_at is None, "it is shown to people"
    assert arrivals.due(after, NOW + 9 * MINUTE) == ()


def codes(change: Change | None) -> dict[str, int]:
    """Return the code of each Error message, by the handle that it goes to."""
    return {message.envelope.to_handle: ErrorDocument.from_xml(message.body).code for message in (change.sent if change else ())}


@pytest.mark.parametrize(
    ("message", "there", "here"),
    [
        pytest.param(from_initiator("paper", b"<open>"), -9615, -9616, id="no XML"),
        pytest.param(from_initiator("question", b"[]"), -9615, -9616, id="another shape than the schema's"),
    ],
)
def test_sb_57_an_invalid_body_ends_the_dialog_and_both_sides_are_told(message: Outgoing, there: int, here: int) -> None:
    target = accepted()
    reception = arrivals.receive(target, message, WAREHOUSE)
    assert isinstance(reception, Discarded)
    assert codes(reception.change) == {"d1": there, target.handle: here}
    assert reception.change is not None
    assert reception.change.endpoint.state is S.ERROR


def test_sb_38_a_first_message_that_is_invalid_tells_only_the_sender_since_nobody_here_knows_the_dialog() -> None:
    reception = arrivals.receive(None, first("paper", b"<open>"), WAREHOUSE)
    assert isinstance(reception, Discarded)
    assert codes(reception.change) == {"d1": -9615}
    assert reception.change is not None
    assert reception.change.endpoint.state is S.CLOSED


def test_sb_55_a_partner_that_has_ended_hears_that_an_invalid_first_message_has_ended_this_side_too() -> None:
    """Else it would wait for that in DO for ever."""
    ended = acts.end(acts.send(begun(), "paper", b"no XML", PARTS).endpoint).endpoint
    endpoint = arrivals.begun_with(first("paper", b"no XML"))
    assert endpoint is not None
    known = arrivals.arrived(endpoint, [END_DIALOG])
    refused = arrivals.receive(known, first("paper", b"no XML"), WAREHOUSE)
    assert isinstance(refused, Discarded)
    assert refused.change is not None
    (acknowledgement,) = refused.change.sent
    heard = arrivals.receive(ended, acknowledgement, WAREHOUSE)
    assert isinstance(heard, Discarded)
    assert heard.change is not None
    assert (ended.state, heard.change.endpoint.state) == (S.DISCONNECTED_OUTBOUND, S.CLOSED)


def test_sb_43_an_invalid_first_message_behind_an_error_leaves_the_end_to_the_application_that_knows_of_the_dialog() -> None:
    endpoint = arrivals.begun_with(first("paper", b"no XML"))
    told = arrivals.receive(endpoint, error(), WAREHOUSE)
    assert isinstance(told, Handed)
    refused = arrivals.receive(told.endpoint, first("paper", b"no XML"), WAREHOUSE)
    assert isinstance(refused, Discarded)
    assert refused.change is not None
    assert refused.change.endpoint.state is S.ERROR


@pytest.mark.parametrize(
    ("services", "code"),
    [({}, -8470), ({"Warehouse": Service("Warehouse", [Contract("others", {"order": "ANY"})])}, -8487)],
    ids=["service", "contract"],
)
def test_sb_57_what_was_dropped_meanwhile(services: dict[str, Service], code: int) -> None:
    reception = arrivals.receive(accepted(), from_initiator("order"), services)
    assert isinstance(reception, Discarded)
    assert codes(reception.change)["d1"] == code


def test_sb_36_a_contract_limits_what_is_sent_and_never_system_messages() -> None:
    target = accepted()
    with pytest.raises(SettingError, match=r"message_type='order'(?s:.*)parts(?s:.*)question, shipped"):
        acts.send(target, "order", b"", PARTS)
    with pytest.raises(SettingError, match="message_type"):
        acts.send(target, ERROR, b"", PARTS)
    for message in (error(), from_initiator(END_DIALOG)):
        assert isinstance(arrivals.receive(target, message, WAREHOUSE), Handed)


@pytest.mark.parametrize("priority", [0, 11])
def test_sb_48_priorities_are_1_to_10_and_both_directions_have_it(priority: int) -> None:
    with pytest.raises(SettingError, match="priority"):
        begun(priority=priority)
    message = acts.send(begun(priority=9), "order", b"", PARTS).sent[0]
    assert (begun().priority, message.priority, accepted(message).priority) == (5, 9, 9)


def test_a_message_is_received_once() -> None:
    target = accepted()
    assert isinstance(arrivals.receive(target, first(), WAREHOUSE), Discarded)
    again = arrivals.receive(target, error(), WAREHOUSE)
    assert isinstance(again, Handed)
    assert isinstance(arrivals.receive(again.endpoint, error(), WAREHOUSE), Discarded)


def test_a_change_raises_the_version_and_what_does_not_change_keeps_it() -> None:
    target = accepted()
    assert acts.send(target, "shipped", b"", PARTS).endpoint.version == target.version + 1
    assert arrivals.arrived(target, [ERROR]).version == target.version
    assert acts.track_failure(target, target.failures).endpoint is target


def test_an_endpoint_and_an_envelope_survive_json() -> None:
    endpoint = acts.set_timer(accepted(acts.send(begun(lifetime=MINUTE, priority=7), "order", b"", PARTS).sent[0]), MINUTE, NOW).endpoint
    assert ConversationEndpoint.from_dict(endpoint.to_dict()) == endpoint
    for message in (first(), error(), *arrivals.due(endpoint, NOW + MINUTE), *acts.end_with_cleanup(endpoint).sent):
        assert Envelope.from_text(message.envelope.to_text()) == message.envelope


@pytest.mark.parametrize("text", ["", "7", '"text"', "[]", "null", '{"final": "never"}', '{"stranger": 1}'])
def test_what_is_no_envelope_is_refused_as_it_is_told(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Envelope.from_text(text)
