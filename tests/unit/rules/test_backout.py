"""When a message is requeued, and where it goes: the rules that activation specifications and listener ports share."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules import websphere_mq
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.decisions import Block, Counts, Deliver, Dispose, Disposition, Report
from airflow_poison.rules.listener_port import ListenerPort
from airflow_poison.rules.policy import Access, Opening
from airflow_poison.rules.websphere_mq import Authority, DeadLetterHeader, parse
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, Message

POLICIES = [pytest.param(ActivationSpecification, id="activation specification"), pytest.param(ListenerPort, id="LP-4 listener port")]
Mq = type[ActivationSpecification] | type[ListenerPort]
EVERY = frozenset(Authority)


def requeued(system: Mq = ActivationSpecification, access: Access = Access.GRANTED, *, queue: str = "B.Q", **properties: str) -> Dispose | Block:
    """Return what is decided about a message whose RC has reached BOTHRESH 2."""
    policy = system.from_dict({"backout_threshold": 2, "backout_requeue_queue": queue, "queue_manager": "QM1"})
    entry = Message(Counts(2), properties=properties)
    decision = policy.open(Opening(queue="ORDERS", access={"B.Q": access})).before(entry, NOW)
    assert not isinstance(decision, Deliver)
    return decision


def disposed(*arguments: Any, **settings: Any) -> Dispose:
    decision = requeued(*arguments, **settings)
    assert isinstance(decision, Dispose)
    return decision


def header_of(decision: Dispose) -> DeadLetterHeader:
    return parse(b64decode(decision.headers["mq.dead_letter_header"], validate=True))


@pytest.mark.parametrize("system", POLICIES)
@pytest.mark.parametrize(
    ("compare", "threshold", "count", "delivered"),
    [
        pytest.param("at_least", 2, 1, True, id="WMQ-10 below"),
        pytest.param("at_least", 2, 2, False, id="WMQ-10 equal"),
        pytest.param("at_least", 2, 3, False, id="WMQ-10 lowered later"),
        pytest.param("equals", 2, 1, True, id="WMQ-10 item 20 below"),
        pytest.param("equals", 2, 2, False, id="WMQ-10 item 20 equal"),
        pytest.param("equals", 2, 3, True, id="WMQ-10 item 20 above"),
        pytest.param("at_least", 0, 0, True, id="WMQ-11 first"),
        pytest.param("at_least", 0, 2147483647, True, id="WMQ-11 however large"),
        pytest.param("equals", 0, 0, True, id="WMQ-11 item 20"),
    ],
)
def test_the_count_is_compared_at_detection(system: Mq, compare: str, threshold: int, count: int, delivered: bool) -> None:  # noqa: FBT001
    policy = system.from_dict({"compare": compare, "backout_threshold": threshold})

    decision = policy.open().before(Message(Counts(count)), NOW)

    assert isinstance(decision, Deliver if delivered else Dispose)


@pytest.mark.parametrize("system", POLICIES)
def test_wmq_e7_wmq_24_a_message_moved_to_the_backout_queue_has_no_header(system: Mq) -> None:
    assert requeued(system) == Dispose(
        Disposition.SEND,
        Counts(2),
        (EventType.REQUEUED,),
        destination="B.Q",
        details={"reason": "2362 MQRC_BACKOUT_THRESHOLD_REACHED"},
    )


DEAD_LETTERED = [
    pytest.param(Access.GRANTED, "", id="WMQ-E7 no BOQNAME, WMQ-10"),
    pytest.param(Access.DENIED, "B.Q", id="WMQ-E7 authority missing, WMQ-22"),
    pytest.param(Access.MISSING, "B.Q", id="WMQ-E7 no such queue, WMQ-24"),
]


@pytest.mark.parametrize("system", POLICIES)
@pytest.mark.parametrize(("access", "queue"), DEAD_LETTERED)
def test_without_a_usable_backout_queue_it_is_dead_lettered_with_a_header(system: Mq, access: Access, queue: str) -> None:
    decision = disposed(system, access, queue=queue)

    assert (decision.how, decision.destination) == (Disposition.SEND, "SYSTEM.DEAD.LETTER.QUEUE")
    assert decision.events == (EventType.DEAD_LETTERED,)
    assert len(b64decode(decision.headers["mq.dead_letter_header"])) == 172
    header = header_of(decision)
    assert (header.reason, header.destination, header.queue_manager) == (2362, "ORDERS", "QM1")
    assert header.put_at == NOW
    assert decision.details["obstacle"]


def test_wmq_24_the_dead_letter_queue_is_the_queue_managers() -> None:
    policy = ActivationSpecification.from_dict({"backout_threshold": 2, "dead_letter_queue": "D.Q"})

    decision = policy.open().before(Message(Counts(2)), NOW)

    assert isinstance(decision, Dispose)
    assert decision.destination == "D.Q"


def test_wmq_25_the_header_says_how_to_read_what_follows() -> None:
    header = header_of(disposed(queue="", JMS_IBM_Encoding="546", JMS_IBM_Character_Set="850", JMS_IBM_Format="MQSTR"))
    default = header_of(disposed(queue="", JMS_IBM_Encoding="little", JMS_IBM_Character_Set="99999999999"))

    assert (header.encoding, header.coded_char_set_id, header.format) == (546, 850, "MQSTR")
    assert (default.encoding, default.coded_char_set_id, default.format) == (273, 1208, "")


@pytest.mark.parametrize("asked", ["MQRO_DISCARD_MSG", "134217728", "mqro_discard_msg"])
@pytest.mark.parametrize(("access", "queue"), DEAD_LETTERED)
def test_wmq_e7_wmq_24_the_sender_may_ask_to_discard_it(access: Access, queue: str, asked: str) -> None:
    decision = disposed(ActivationSpecification, access, queue=queue, JMS_IBM_Report_Discard_Msg=asked)

    assert (decision.how, decision.events, decision.to_dead_letter) == (Disposition.DROP, (EventType.DROPPED,), False)


def test_wmq_24_a_message_that_can_be_requeued_is_not_discarded() -> None:
    assert disposed(JMS_IBM_Report_Discard_Msg="MQRO_DISCARD_MSG").events == (EventType.REQUEUED,)


@pytest.mark.parametrize("asked", ["", "0", "MQRO_DEAD_LETTER_Q", "MQRO_EXCEPTION", "yes", "-134217728", "²"])
def test_wmq_24_anything_else_is_no_wish_to_discard(asked: str) -> None:
    assert disposed(queue="", JMS_IBM_Report_Discard_Msg=asked).events == (EventType.DEAD_LETTERED,)


@pytest.mark.parametrize(
    ("option", "data"),
    [
        pytest.param("MQRO_EXCEPTION", 0, id="WMQ-24 none"),
        pytest.param("16777216", 0, id="WMQ-24 none by number"),
        pytest.param("MQRO_EXCEPTION_WITH_DATA", 100, id="WMQ-24 WMQ-E7 100 bytes"),
        pytest.param("50331648", 100, id="WMQ-24 100 bytes by number"),
        pytest.param("MQRO_EXCEPTION_WITH_FULL_DATA", None, id="WMQ-24 all"),
        pytest.param("117440512", None, id="WMQ-24 all by number"),
    ],
)
@pytest.mark.parametrize(
    ("access", "discard"),
    [(Access.GRANTED, ""), (Access.DENIED, ""), (Access.DENIED, "MQRO_DISCARD_MSG")],
    ids=["requeued", "dead-lettered", "dropped"],
)
def test_an_exception_report_goes_to_the_reply_to_queue(option: str, data: int | None, access: Access, discard: str) -> None:
    asked = {"JMS_IBM_Report_Exception": option, "JMS_IBM_Report_Discard_Msg": discard, "JMSReplyTo": "R.Q"}

    assert disposed(ActivationSpecification, access, **asked).reports == (Report(to="R.Q", feedback=2362, data=data),)


@pytest.mark.parametrize("reply_to", ["queue:///R.Q", "queue://QM1/R.Q", "queue://QM1/R.Q?targetClient=1", " R.Q "])
def test_wmq_24_a_reply_to_queue_may_be_a_uri(reply_to: str) -> None:
    (report,) = disposed(JMS_IBM_Report_Exception="MQRO_EXCEPTION", JMSReplyTo=reply_to).reports

    assert report.to == "R.Q"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"JMSReplyTo": "R.Q"},
        {"JMS_IBM_Report_Exception": "MQRO_EXCEPTION"},
        {"JMS_IBM_Report_Exception": "MQRO_DISCARD_MSG", "JMSReplyTo": "R.Q"},
    ],
    ids=str,
)
def test_wmq_24_without_being_asked_nobody_is_told(asked: dict[str, str]) -> None:
    assert disposed(**asked).reports == ()


def test_wmq_24_an_unreadable_message_has_its_own_reason_in_header_and_report() -> None:
    policy = ActivationSpecification()
    entry = Message(properties={"JMS_IBM_Report_Exception": "MQRO_EXCEPTION", "JMSReplyTo": "R.Q"})

    decision = policy.open().give_up(entry, Failure(FailureKind.UNREADABLE), NOW)

    assert isinstance(decision, Dispose)
    assert header_of(decision).reason == 2364
    assert [report.feedback for report in decision.reports] == [2364]


@pytest.mark.parametrize("access", [Access.MISSING, Access.DENIED])
def test_a_message_that_no_queue_takes_is_not_lost_and_not_delivered(access: Access) -> None:
    policy = ListenerPort.from_dict({"backout_threshold": 2})

    decision = policy.open(Opening(access={"SYSTEM.DEAD.LETTER.QUEUE": access})).before(Message(Counts(2)), NOW)

    assert isinstance(decision, Block)
    assert (decision.counts, decision.until, decision.whole_queue) == (Counts(2), None, False)
    assert "SYSTEM.DEAD.LETTER.QUEUE" in decision.details["obstacle"]


def test_wmq_22_all_five_authorities_are_enough() -> None:
    assert websphere_mq.access_with(EVERY) is Access.GRANTED
    assert websphere_mq.access_with(["Get", "Inquire", "Pass All Context", "Put", "Set All Context", "Browse"]) is Access.GRANTED


@pytest.mark.parametrize("missing", Authority, ids=lambda authority: f"WMQ-22 without {authority}")
def test_each_of_the_five_authorities_is_needed(missing: Authority) -> None:
    assert websphere_mq.access_with(EVERY - {missing}) is Access.DENIED


@given(st.sets(st.sampled_from(Authority)))
def test_wmq_22_fewer_than_five_are_not_enough(granted: set[Authority]) -> None:
    assert (websphere_mq.access_with(granted) is Access.GRANTED) == (len(granted) == 5)


def test_wmq_9_the_count_stops_at_the_largest_number() -> None:
    assert ActivationSpecification().rolled_back(Counts(2147483647)) == Counts(2147483647)
    assert ActivationSpecification().rolled_back(Counts(4, 3)) == Counts(5, 3)
