"""Dialogs in real server sessions: what a handler did in its conversation is there when it returned, and never when it did not."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import track_failures
from airflow_poison.delivery.settlement import GiveBack
from airflow_poison.dialogs.acts import target_handle
from airflow_poison.dialogs.system_messages import BOTH_ENDED, END_DIALOG, ERROR, BrokerError, ErrorDocument
from airflow_poison.rules.decisions import Dispose, Halt, Park
from tests.given.endpoints import broker, deliveries, processes, specification, written
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.conftest import policy as msmq4
from tests.sessions.dialogs import Seen, dialog_batch, dialog_state, end_dialog, endpoint, error, message, timer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_poison.delivery.session import BatchReport
    from airflow_poison.dialogs.acts import Outgoing
    from airflow_poison.dialogs.transaction import DialogState
    from airflow_poison.rules.policy import Policy
    from tests.sessions.conftest import Opener

pytestmark = pytest.mark.filterwarnings("ignore::airflow_poison.values.errors.ConfigurationWarning")
HANDLER = "tests.sessions.dialog_handlers:talk"
DISCARDED = "discarded"


class Delivering:
    """Delivers messages of dialogs and remembers what became of them."""

    def __init__(self, session: Opener, journals: Path, isolation: str) -> None:
        self._session, self._isolation, self.folder = session, isolation, journals.parent
        self.seen = Seen()

    def says(self, words: str, name: str = "d1", sequence: int = 1, **envelope: Any) -> Outgoing:
        return message(name, sequence, f"{self.folder} {words}", **envelope)

    def __call__(
        self, messages: Sequence[Outgoing | bytes | str], hand: DialogState | None = None, policy: Policy | None = None, handler: object = HANDLER
    ) -> BatchReport:
        with self._session(handler, self._isolation, policy=policy or broker(1), dialog_state=hand or dialog_state()) as session:
            report = session.deliver(dialog_batch(messages))
        self.seen.add(report)
        return report

    @property
    def calls(self) -> list[int]:
        return written(self.folder)


@pytest.fixture
def deliver(session: Opener, journals: Path, isolation: str) -> Delivering:
    return Delivering(session, journals, isolation)


def why(report: BatchReport, row: int) -> str:
    """Why a message was discarded."""
    assert report.decided is not None
    end = report.decided.ends[row]
    assert isinstance(end, Dispose)
    return end.details["why"]


def test_what_a_handler_did_is_there_when_it_has_returned(deliver: Delivering) -> None:
    report = deliver([deliver.says("answer yes,ask price,timer 60"), f"{deliver.folder} plain"])

    assert told(report.words) == [COMMITTED] * 2
    assert deliver.seen.told == [("d1", "Answer", "yes"), ("d1", "Question", '{"asks": "price"}')]
    assert [sent.envelope.sequence for sent in deliver.seen.sent] == [1, 2]
    after = deliver.seen.endpoints["d1"]
    assert (after.state.value, after.sent, after.received, after.timer_number) == ("CO", 2, 1, 1)


@pytest.mark.parametrize("handler", [f"{HANDLER}_and_return", track_failures(f"{HANDLER}_and_return")], ids=["plain", "tracked"])
def test_what_a_handler_did_before_it_returned_work_that_has_not_been_done_is_rolled_back(deliver: Delivering, handler: object) -> None:
    report = deliver([deliver.says("answer no")], handler=handler)

    assert deliveries(deliver.folder)[0] in {4, 5}
    assert COMMITTED not in told(report.words)
    assert [body for _, kind, body in deliver.seen.told if kind == "Answer"] == []


@pytest.mark.parametrize(("words", "deliveries_"), [("answer no,raise-once,answer yes", 2), ("answer no,die-once,answer yes", 2)])
def test_nothing_of_a_delivery_that_was_rolled_back_is_visible(deliver: Delivering, words: str, deliveries_: int) -> None:
    if "die" in words and deliver._isolation == "none":
        pytest.skip("inline, a handler that dies ends the whole task: test_conversations_killed.py")
    report = deliver([deliver.says(words), deliver.says("state", sequence=2)])

    assert deliveries(deliver.folder)[0] == deliveries_
    assert [state for state, _, _ in told(report.words)] == [COMMITTED[0]] * 2
    assert deliver.seen.told == [("d1", "Answer", "no"), ("d1", "Answer", "yes")], "those of the last delivery alone"
    assert (deliver.seen.endpoints["d1"].sent, deliver.seen.endpoints["d1"].received) == (2, 2)


def test_a_delivery_that_takes_too_long_does_nothing(session: Opener, journals: Path) -> None:
    deliver = Delivering(session, journals, "process")

    deliver([deliver.says("answer no,hang-once,end")], policy=broker(1, transaction_timeout=timedelta(seconds=1)))

    assert deliver.seen.told == [("d1", "Answer", "no"), ("d1", "EndDialog", "")]
    assert deliver.seen.state() == "DO"


def test_sb_10_five_rollbacks_disable_the_queue_and_have_done_nothing(deliver: Delivering) -> None:
    report = deliver([deliver.says("answer no,raise"), deliver.says("ok", "d2")])

    assert report.halted
    assert deliver.calls == [0] * 5
    assert deliver.seen.told == []
    assert deliver.seen.state() == "SI", "the arrival of its first message has created it"
    assert "d2" not in deliver.seen.endpoints


@pytest.mark.parametrize(
    ("words", "state", "partner"), [("end", "DO", "EndDialog"), ("end-error 127", "CD", "Error"), ("cleanup", "CD", "EndDialog")]
)
def test_sb_30_e13_ending_a_conversation_removes_its_other_messages(deliver: Delivering, words: str, state: str, partner: str) -> None:
    report = deliver([deliver.says("ok"), deliver.says(words, sequence=2), deliver.says("ok", sequence=3), deliver.says("ok", "d2")])

    assert deliver.calls == [0, 1, 3]
    assert why(report, 2).startswith("the conversation was ended")
    assert deliver.seen.discarded == 1
    assert deliver.seen.state() == state
    mine = [sent for sent in deliver.seen.sent if sent.envelope.conversation_id == "d1"]
    assert [sent.message_type.rsplit("/", 1)[-1] for sent in mine][:1] == [partner]


def test_sb_43_a_reply_after_the_partners_end_is_an_error_at_once(deliver: Delivering) -> None:
    """EndDialog has arrived and waits behind the message: its state is DI already (section 11.1)."""
    hand = dialog_state([endpoint()], {"d1": ("Order", END_DIALOG)})

    report = deliver([deliver.says("state,answer no"), end_dialog()], hand)

    assert (deliver.folder / "state-0").read_text() == "DI"
    assert "Error 8429" in report.failures[0].text
    assert report.halted, "five rollbacks"


def test_a_partners_end_is_received_and_closes_the_dialog(deliver: Delivering) -> None:
    deliver([deliver.says("ok"), end_dialog()], dialog_state([endpoint()], {"d1": ("Order", END_DIALOG)}))

    assert deliver.seen.state() == "CD"
    assert {sent.message_type for sent in deliver.seen.sent} <= {BOTH_ENDED}, "only its broker may want to know"


def test_sb_41_a_stale_timer_and_a_second_error_are_discarded(deliver: Delivering) -> None:
    hand = dialog_state([endpoint(timer_number=2)])

    report = deliver([timer(number=1), error(), error(sequence=3)], hand)

    assert why(report, 0) == "the timer was set again before it expired, or has been received"
    assert why(report, 2) in {"an error of this conversation has been received before", "the conversation was ended"}
    assert deliver.seen.discarded == 2


def test_sb_57_an_invalid_body_ends_the_dialog_and_tells_both_sides(deliver: Delivering) -> None:
    hand = dialog_state([endpoint(received=1)])

    report = deliver([message("d1", 2, "no JSON", "Question"), deliver.says("answer", sequence=3)], hand)

    assert "fail" in why(report, 0)
    codes = {sent.envelope.is_local: ErrorDocument.from_xml(sent.body).code for sent in deliver.seen.sent if sent.message_type == ERROR}
    assert codes == {False: -BrokerError.SENT_INVALID.value, True: -BrokerError.RECEIVED_INVALID.value}
    assert "8429" in report.failures[1].text, "the dialog has an error now"


def test_a_message_for_nobody_tells_its_sender(deliver: Delivering) -> None:
    report = deliver([deliver.says("ok", sequence=4)])

    assert why(report, 0) == "the conversation endpoint is gone"
    assert [ErrorDocument.from_xml(sent.body).code for sent in deliver.seen.sent] == [-BrokerError.ENDPOINT_GONE.value]
    assert deliver.calls == []


def test_a_duplicate_is_discarded(deliver: Delivering) -> None:
    report = deliver([deliver.says("answer"), deliver.says("answer")])

    assert why(report, 1) == "it has been received before"
    assert deliver.calls == [0]


# Messages that leave without having been received ---------------------------------------------------------------------


def test_a_postponed_message_is_overtaken_and_comes_back(deliver: Delivering) -> None:
    """The first of its dialog is put off: the second finds a conversation, and the first is no duplicate when it is back."""
    report = deliver([deliver.says("postpone"), deliver.says("answer", sequence=2)])

    assert report.decided is not None
    assert isinstance(report.decided.ends[0], GiveBack)
    assert deliver.seen.endpoints["d1"].missing == ((1, 1),)

    back = deliver([deliver.says("answer back")], dialog_state(deliver.seen.endpoints.values()))

    assert told(back.words) == [COMMITTED]
    after = deliver.seen.endpoints["d1"]
    assert (after.missing, after.received) == ((), 2)
    assert deliver.seen.told == [("d1", "Answer", "to 1"), ("d1", "Answer", "back")]


def test_an_unprocessable_message_may_be_sent_again_by_people(deliver: Delivering) -> None:
    report = deliver([deliver.says("ok"), deliver.says("answer,unprocessable", sequence=2), deliver.says("ok", sequence=3)])

    assert report.decided is not None
    assert isinstance(report.decided.ends[1], Dispose)
    assert deliver.seen.endpoints["d1"].missing == ((2, 2),)
    assert deliver.seen.sent == []

    back = deliver([deliver.says("answer mended", sequence=2)], dialog_state(deliver.seen.endpoints.values()))
    assert told(back.words) == [COMMITTED]


def test_a_parked_message_lets_the_others_of_its_dialog_pass(deliver: Delivering) -> None:
    """Decisions of this policy depend on the message alone; with conversations it has an endpoint all the same."""
    report = deliver([deliver.says("raise"), deliver.says("answer", sequence=2)], policy=msmq4(max_retry_cycles=1))

    assert report.decided is not None
    assert isinstance(report.decided.ends[0], Park)
    assert report.failures[0].text == "bad 0", "also where the policy asks for the last text only"
    assert deliver.seen.told == [("d1", "Answer", "to 1")]


def test_what_an_end_dialog_says_holds_while_it_is_put_off(session: Opener, journals: Path, isolation: str) -> None:
    deliver = Delivering(session, journals, isolation)
    with session("tests.sessions.dialog_handlers:put_off", isolation, policy=broker(1), dialog_state=dialog_state([endpoint()])) as opened:
        deliver.seen.add(opened.deliver(dialog_batch([end_dialog("d1", 1)])))

    assert deliver.seen.state() == "DI"
    again = deliver([end_dialog("d1", 1)], dialog_state(deliver.seen.endpoints.values()))
    assert told(again.words) == [COMMITTED], "and it can be received"


def test_a_system_message_that_is_put_to_rest_counts_as_received(session: Opener, journals: Path, isolation: str) -> None:
    deliver = Delivering(session, journals, isolation)
    with session("tests.sessions.dialog_handlers:refuse", isolation, policy=broker(1), dialog_state=dialog_state([endpoint()])) as opened:
        deliver.seen.add(opened.deliver(dialog_batch([error()])))

    assert deliver.seen.state() == "ER"
    assert deliver.seen.endpoints["d1"].error_code == 127


# Sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [broker(2), specification(2)], ids=["locks groups", "sweeps"])
def test_sb_47_two_sessions_never_hold_one_group(deliver: Delivering, policy: Policy) -> None:
    """A policy that knows no groups, too: side by side its handlers would act in one conversation."""
    if deliver._isolation == "none":
        pytest.skip("inline there is one handler at a time")
    first = [deliver.says("meet 2,answer", name) for name in ("d1", "d2")]
    messages = [first[0], deliver.says("raise-once,answer", sequence=2), deliver.says("answer", sequence=3), first[1]]

    deliver(messages, policy=policy)

    assert [sent.envelope.sequence for sent in deliver.seen.sent if sent.envelope.conversation_id == "d1"] == [1, 2, 3]
    assert sorted(deliver.seen.told) == [("d1", "Answer", f"to {number}") for number in range(3)] + [("d2", "Answer", "to 3")]
    assert len({pid for pids in processes(deliver.folder).values() for pid in pids}) == 2


def test_a_transaction_receives_one_message_where_there_are_conversations(deliver: Delivering) -> None:
    """In a batch the second would be discarded for what the first did, and then the batch would be rolled back."""
    policy = msmq4(max_batch_size=3)

    report = deliver([deliver.says("end"), deliver.says("ok", sequence=2), deliver.says("raise-once", "d2")], policy=policy)

    assert deliveries(deliver.folder) == Counter({0: 1, 2: 2})
    assert why(report, 1) == "the conversation was ended"


def test_at_most_once_what_was_done_is_lost_with_a_failure_only(deliver: Delivering) -> None:
    policy = msmq4(receive_retry_count=0, exactly_once=False)

    report = deliver([deliver.says("answer no,raise"), deliver.says("answer yes", sequence=2)], policy=policy)

    assert told(report.words) == [COMMITTED] * 2
    assert deliver.seen.told == [("d1", "Answer", "yes")]
    assert deliver.seen.endpoints["d1"].received == 2


# The savepoint --------------------------------------------------------------------------------------------------------


def test_sb_8_58_back_at_the_savepoint_only_what_is_done_since_counts(deliver: Delivering) -> None:
    report = deliver([deliver.says("answer no,savepoint,track")])

    assert told(report.words) == [(UNTOUCHED[0].ENDED, 0, 0)], "received again and again, until the fourth failure ended the conversation"
    assert deliver.calls == [0] * 4
    assert not report.halted
    assert deliver.seen.state() == "CD"
    assert [ErrorDocument.from_xml(sent.body) for sent in deliver.seen.sent] == [ErrorDocument(500, "Unable to process message.")]
    assert why(report, 0) == "the conversation was ended"


def test_a_full_rollback_after_the_savepoint_undoes_what_was_done_since(deliver: Delivering) -> None:
    report = deliver([deliver.says("savepoint,track,raise")])

    assert report.halted
    assert deliver.seen.endpoints["d1"].failures == 0
    assert report.decided is not None
    assert isinstance(report.decided.ends[0], Halt)


# Who acts -------------------------------------------------------------------------------------------------------------


def test_a_conversation_ends_with_its_delivery(deliver: Delivering) -> None:
    report = deliver([deliver.says("keep"), deliver.says("use-kept", sequence=2)])

    assert "the delivery of this message has ended" in report.failures[1].text
    assert deliver.seen.sent == []


def test_a_thread_that_outlives_its_delivery_can_do_nothing(deliver: Delivering) -> None:
    deliver([deliver.says("later"), deliver.says("until-late", sequence=2)])

    assert "ConversationError" in (deliver.folder / "late").read_text()
    assert deliver.seen.sent == []


def test_a_fork_of_the_handler_can_do_nothing(deliver: Delivering) -> None:
    deliver([deliver.says("in-a-fork,answer here")])

    assert "not the process that has the message" in (deliver.folder / "forked").read_text()
    assert deliver.seen.told == [("d1", "Answer", "here")]


def test_large_replies_travel_whole(deliver: Delivering) -> None:
    deliver([deliver.says(f"large {20 << 20},large {10 << 20}")])

    assert [len(sent.body) for sent in deliver.seen.sent] == [20 << 20, 10 << 20]


def test_more_than_64_mib_in_one_delivery_is_refused(deliver: Delivering) -> None:
    report = deliver([deliver.says(f"large {40 << 20},large {40 << 20}")])

    assert "64 MiB" in report.failures[0].text or "67,108,864 bytes" in report.failures[0].text
    assert deliver.seen.sent == []


def test_an_envelope_that_nobody_can_read_makes_no_dialog(deliver: Delivering) -> None:
    batch = dialog_batch([f"{deliver.folder} plain"])
    row = batch.to_pylist()[0] | {"properties": [("poison.dialog", "{")]}
    damaged = type(batch).from_pylist([row], schema=batch.schema)

    with deliver._session(HANDLER, deliver._isolation, policy=broker(1), dialog_state=dialog_state()) as session:
        assert told(session.deliver(damaged).words) == [COMMITTED]


def test_endpoints_over_several_batches(deliver: Delivering) -> None:
    """What an earlier batch did is known in the next one, and told once."""
    with deliver._session(HANDLER, deliver._isolation, policy=broker(1), dialog_state=dialog_state()) as session:
        first = session.deliver(dialog_batch([deliver.says("answer")]))
        second = session.deliver(dialog_batch([deliver.says("end", sequence=2)], 1))
        third = session.deliver(dialog_batch([deliver.says("ok", sequence=3)], 2))

    for report in (first, second, third):
        deliver.seen.add(report)
    assert [len(report.conversed.sent) for report in (first, second, third) if report.conversed] == [1, 1, 0]
    assert deliver.seen.discarded == 1
    assert deliver.seen.endpoints["d1"].handle == target_handle("d1")
