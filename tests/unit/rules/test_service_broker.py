"""The decisions of Service Broker's readers, one rule each."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from airflow_poison.rules.decisions import Counts, Deliver, Dispose, Disposition, Halt, Halted, Return
from airflow_poison.rules.policy import Opening, Restart
from airflow_poison.rules.queue_disabling import QueueDisabledDocument
from airflow_poison.rules.service_broker import ServiceBroker, ServiceBrokerReceiver
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import Failure, FailureKind
from tests.unit.rules.entries import NOW, RAISED, Message, message

UNPROCESSABLE = Failure(FailureKind.UNPROCESSABLE)
UNREADABLE = Failure(FailureKind.UNREADABLE)
GROUPS = ServiceBroker(scope="conversation_group")
BACKGROUND = ServiceBroker(disabling="background")


def reader(policy: ServiceBroker | None = None, **counters: int) -> ServiceBrokerReceiver:
    return (policy or ServiceBroker()).open(Opening("ExpenseQueue", counters))


def of(group: str, abort_count: int = 0) -> Message:
    return replace(message(abort_count), group=group)


def fail(receiver: ServiceBrokerReceiver, *received: Message, failure: Failure = RAISED) -> Return | Halt:
    """Receive messages in one transaction and roll it back; return the decision about the first."""
    received = received or (of("g"),)
    for one in received:
        assert isinstance(receiver.before(one, NOW), Deliver)
    receiver.transaction_aborted(became_poison=False)
    first, *_ = [receiver.after_rollback(one, failure, NOW) for one in received]
    return first


def commit(receiver: ServiceBrokerReceiver, *received: Message) -> Halt | None:
    """Receive messages in one transaction and commit it."""
    received = received or (of("g"),)
    for one in received:
        assert isinstance(receiver.before(one, NOW), Deliver)
    return receiver.transaction_committed(received)


def failed(times: int, policy: ServiceBroker | None = None) -> ServiceBrokerReceiver:
    receiver = reader(policy)
    for _ in range(times):
        assert isinstance(fail(receiver), Return)
    return receiver


# Detection ---------------------------------------------------------------------------------------------------------


def test_sb_3_a_rolled_back_message_is_back_and_delivered_again_with_one_rollback_more() -> None:
    receiver = reader()

    assert fail(receiver, of("g", 3)) == Return(Counts(4, 0))
    assert receiver.before(of("g", 4), NOW) == Deliver(Counts(4, 0))


def test_sb_4_5_10_the_fifth_rollback_disables_the_queue() -> None:
    decision = fail(failed(4), of("g", 4))

    assert isinstance(decision, Halt)
    assert (decision.how, decision.counts, decision.events) == (Halted.DISABLED, Counts(5, 0), (EventType.QUEUE_DISABLED,))


def test_sb_5_16_17_the_event_carries_the_document_of_the_right_queue_at_the_right_time() -> None:
    decision = fail(failed(4, ServiceBroker(database_name="AdventureWorks", schema_name="expenses")))

    assert isinstance(decision, Halt)
    document = QueueDisabledDocument.from_xml(decision.details["document"])
    assert document == QueueDisabledDocument(queue="ExpenseQueue", post_time=NOW, database_name="AdventureWorks", schema_name="expenses")
    assert decision.details["rollbacks"] == "5"


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_sb_10_another_limit_for_tests(limit: int) -> None:
    assert isinstance(fail(failed(limit - 1, ServiceBroker(rollback_limit=limit))), Halt)


def test_sb_1_3_no_rule_looks_at_the_rollbacks_of_the_message_itself() -> None:
    receiver = reader()

    assert receiver.before(of("g", 99), NOW) == Deliver(Counts(99, 0))
    assert fail(receiver, of("g", 99)) == Return(Counts(100, 0))


@pytest.mark.parametrize("kind", [FailureKind.EXCEPTION, FailureKind.CRASH, FailureKind.TIMEOUT])
def test_sb_4_every_kind_of_rollback_counts(kind: FailureKind) -> None:
    assert isinstance(fail(failed(4), failure=Failure(kind)), Halt)


def test_sb_6_7_a_commit_starts_anew() -> None:
    receiver = failed(4)
    assert commit(receiver, of("another")) is None

    assert [type(fail(receiver)) for _ in range(5)] == [Return, Return, Return, Return, Halt]


def test_sb_7_the_queue_s_counter_counts_the_rollbacks_of_any_message() -> None:
    receiver = reader()

    assert [type(fail(receiver, of(f"g{number}"))) for number in range(5)] == [Return, Return, Return, Return, Halt]


def test_sb_7_e3_with_scope_conversation_group_each_group_has_a_counter() -> None:
    receiver = reader(GROUPS)
    for _ in range(4):
        assert isinstance(fail(receiver, of("g1")), Return)
        assert isinstance(fail(receiver, of("g2")), Return)
        assert commit(receiver, of("g3")) is None
    commit(receiver, of("g2"))

    assert receiver.counters() == {"rollbacks:g1": 4}
    assert isinstance(fail(receiver, of("g2")), Return)
    assert isinstance(fail(receiver, of("g1")), Halt)


@pytest.mark.parametrize("policy", [ServiceBroker(), GROUPS])
def test_sb_8_a_rollback_of_several_messages_of_one_transaction_counts_once(policy: ServiceBroker) -> None:
    receiver = reader(policy)
    fail(receiver, of("g"), of("g"), of("g"))
    fail(receiver, of("g"), of("g"))

    assert list(receiver.counters().values()) == [2]


def test_sb_8_two_groups_of_one_transaction_are_one_rollback_of_the_queue_and_one_of_each_group() -> None:
    queue, groups = reader(), reader(GROUPS)
    for receiver in (queue, groups):
        fail(receiver, of("g1"), of("g2"), of("g1"))

    assert queue.counters() == {"rollbacks": 1}
    assert groups.counters() == {"rollbacks:g1": 1, "rollbacks:g2": 1}


def test_sb_8_only_one_message_of_a_transaction_disables_the_queue_and_all_are_back() -> None:
    receiver = failed(4)
    receiver.transaction_aborted(became_poison=False)
    decisions = [receiver.after_rollback(of("g"), RAISED, NOW) for _ in range(3)]

    assert [type(decision) for decision in decisions] == [Halt, Return, Return]
    assert {decision.counts for decision in decisions} == {Counts(1, 0)}


def test_sb_8_58_a_savepoint_and_a_commit_leave_the_counter_at_0() -> None:
    receiver = failed(3)
    commit(receiver)

    assert receiver.counters() == {}


def test_sb_8_e5_a_receive_without_a_row_or_with_an_error_asks_nothing_and_counts_nothing() -> None:
    receiver = failed(2)

    assert [type(fail(receiver)) for _ in range(3)] == [Return, Return, Halt]


def test_sb_9_after_the_queue_is_disabled_open_transactions_count_and_disable_nothing_more() -> None:
    receiver = failed(4)
    assert isinstance(fail(receiver), Halt)

    assert [fail(receiver), fail(receiver)] == [Return(Counts(1, 0))] * 2
    assert receiver.counters() == {"rollbacks": 7}
    assert commit(receiver) is None
    assert [type(fail(receiver)) for _ in range(6)] == [Return] * 6


# Neither corrupt nor invalid ---------------------------------------------------------------------------------------

DEAD_LETTER = Dispose(Disposition.SEND, Counts(2, 0), (EventType.DEAD_LETTERED,), destination="ExpenseQueue.dead-letter")


def test_sb_2_an_invalid_request_counts_nothing_and_is_kept_in_the_dead_letter_queue() -> None:
    receiver = failed(4)

    assert fail(receiver, of("g", 2), failure=UNPROCESSABLE) == Return(Counts(2, 0))
    assert receiver.counters() == {"rollbacks": 4}
    assert receiver.give_up(of("g", 2), UNPROCESSABLE, NOW) == DEAD_LETTER


def test_sb_2_7_removing_an_invalid_request_commits_its_receive() -> None:
    receiver = failed(4)
    receiver.give_up(of("g"), UNPROCESSABLE, NOW)

    assert receiver.counters() == {}


def test_sb_2_a_corrupt_message_is_the_broker_s_own_finding_and_changes_no_counter() -> None:
    receiver = failed(4)

    assert receiver.give_up(of("g", 2), UNREADABLE, NOW) == DEAD_LETTER
    assert receiver.counters() == {"rollbacks": 4}


# In the background -------------------------------------------------------------------------------------------------


def test_sb_13_in_the_background_exactly_one_more_delivery_slips_in_and_its_rollback_ends_receiving() -> None:
    receiver = failed(5, BACKGROUND)
    sixth = fail(receiver, of("g", 5))

    assert isinstance(sixth, Halt)
    assert (sixth.counts, sixth.events, sixth.details["rollbacks"]) == (Counts(6, 0), (EventType.QUEUE_DISABLED,), "5")
    assert receiver.counters() == {"rollbacks": 6}


def test_sb_13_in_the_background_its_commit_ends_receiving_too() -> None:
    receiver = failed(5, BACKGROUND)
    halt = commit(receiver)

    assert halt is not None
    assert (halt.how, halt.events) == (Halted.DISABLED, (EventType.QUEUE_DISABLED,))
    assert QueueDisabledDocument.from_xml(halt.details["document"]).post_time == NOW
    assert receiver.counters() == {}
    assert commit(receiver) is None


def test_sb_13_of_several_readers_only_one_more_receives() -> None:
    receiver = failed(4, replace(BACKGROUND, max_queue_readers=3))
    beside = of("beside")
    receiver.before(beside, NOW)
    assert isinstance(fail(receiver), Return)
    assert receiver.transaction_committed([beside]) is None

    assert isinstance(receiver.before(of("a"), NOW), Deliver)
    halt = receiver.before(of("b", 7), NOW)
    assert isinstance(halt, Halt)
    assert halt.counts == Counts(7, 0)
    assert receiver.transaction_committed([of("a")]) is None


@pytest.mark.parametrize("how", ["postponed", "unprocessable"])
def test_sb_13_when_the_one_more_neither_commits_nor_rolls_back_the_next_receive_finds_the_queue_disabled(how: str) -> None:
    receiver = failed(5, BACKGROUND)
    receiver.before(of("g"), NOW)
    if how == "unprocessable":
        assert isinstance(receiver.after_rollback(of("g"), UNPROCESSABLE, NOW), Return)
        assert isinstance(receiver.give_up(of("g"), UNPROCESSABLE, NOW), Dispose)

    assert isinstance(receiver.before(of("h"), NOW), Halt)


def test_sb_13_a_corrupt_message_does_not_slip_in() -> None:
    due, slipped = failed(5, BACKGROUND), failed(5, BACKGROUND)
    slipped.before(of("g"), NOW)

    assert isinstance(due.give_up(of("h"), UNREADABLE, NOW), Dispose)
    assert isinstance(slipped.give_up(of("h"), UNREADABLE, NOW), Halt)


def test_sb_13_a_pass_that_ends_before_leaves_the_disabling_to_the_next_receive() -> None:
    kept = failed(5, BACKGROUND).counters()
    assert kept == {"rollbacks": 5, "disabling": 5}

    halt = reader(BACKGROUND, **kept).before(of("g", 5), NOW)
    assert isinstance(halt, Halt)
    assert (halt.counts, halt.details["rollbacks"]) == (Counts(5, 0), "5")


def test_sb_13_by_default_nothing_slips_in() -> None:
    assert ServiceBroker().disabling == "synchronous"


# Memory ------------------------------------------------------------------------------------------------------------


def test_sb_7_the_next_pass_goes_on_counting() -> None:
    assert failed(3).counters() == {"rollbacks": 3}
    receiver = reader(rollbacks=3)

    assert [type(fail(receiver)) for _ in range(2)] == [Return, Halt]


def test_sb_7_the_next_pass_goes_on_counting_each_group() -> None:
    first = reader(GROUPS)
    fail(first, of("g1"))
    fail(first, of("g2"))
    second = reader(GROUPS, **first.counters())
    fail(second, of("g1"))
    commit(second, of("g2"))

    assert second.counters() == {"rollbacks:g1": 2}


def test_sb_7_the_counters_of_another_scope_mean_nothing() -> None:
    assert reader(GROUPS, rollbacks=4).counters() == {}
    assert reader(ServiceBroker(), **{"rollbacks:g": 4}).counters() == {}


@pytest.mark.parametrize(
    ("restart", "kept"),
    [(Restart.ENDPOINT, {"rollbacks": 4}), (Restart.SERVER, {}), (Restart.BROKER, {})],
)
def test_sb_7_a_restart_loses_the_counters(restart: Restart, kept: dict[str, int]) -> None:
    assert ServiceBroker().counters_after({"rollbacks": 4}, restart) == kept


@pytest.mark.parametrize("restart", Restart)
def test_sb_3_a_restart_keeps_what_people_see_of_a_message(restart: Restart) -> None:
    assert ServiceBroker().counts_after(Counts(4, 0), restart) == Counts(4, 0)


def test_sb_7_e5_set_to_on_starts_the_counters_anew() -> None:
    assert GROUPS.counters_when_enabled({"rollbacks": 4, "rollbacks:g": 2, "disabling": 5}, starts=False) == {}


def test_sb_7_11_without_poison_handling_nothing_is_counted_and_what_was_is_forgotten() -> None:
    receiver = reader(ServiceBroker.from_dict({"POISON_MESSAGE_HANDLING": "OFF"}), rollbacks=4, disabling=5)

    assert [type(fail(receiver)) for _ in range(7)] == [Return] * 7
    assert receiver.counters() == {}


def test_sb_7_an_open_reader_can_be_pickled_with_its_counters() -> None:
    receiver = failed(4)

    assert isinstance(fail(pickle.loads(pickle.dumps(receiver))), Halt)
    assert isinstance(fail(receiver), Halt)
