"""What people change of a queue at run time: ON, OFF, and settings; and how a new queue begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison.passes.alter import alter, declare, disable, enable
from airflow_poison.rules.activation_specification import ActivationSpecification
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.errors import ConfigurationWarning, MessageClaimedError, QueueHaltedError, SettingError, SystemChangeError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import SubQueue
from tests.given.passes import LEASE, NO_RETRY, a_queue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_poison.store import QueueStore
    from airflow_poison.store.control import Control
    from tests.given.passes import Queue
    from tests.given.points import AtPoint

SUBSCRIBED = {"told:alert:us": 7, "telling:alert:us": 9}
COUNTED = {"rollbacks": 4}


@pytest.fixture
def broker(store: QueueStore, tmp_path: Path) -> Queue:
    """A Service Broker queue after four rollbacks in a row, with a subscriber."""
    queue = a_queue(store, tmp_path, ServiceBroker())
    put(queue, counters=SUBSCRIBED | COUNTED)
    return queue


def put(queue: Queue, **cells: object) -> None:
    """Change the control row behind the verbs' back."""
    queue.table.alter(lambda control: replace(control, **cells))  # type: ignore[arg-type]  # the names are the fields'


def control(queue: Queue) -> Control:
    return queue.table.snapshot().control


def counters(queue: Queue) -> Mapping[str, int]:
    return dict(control(queue).counters)


# ON -----------------------------------------------------------------------------------------------------------------


def test_enabling_a_queue_of_plain_messages_reads_none_of_them(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.sent("ok 1")
    disable(queue.table, queue.clock)
    monkeypatch.setattr(type(queue.table), "read", lambda *_: pytest.fail("a file was read"))
    enable(queue.table, queue.clock)
    assert control(queue).state is QueueState.ENABLED


@pytest.mark.parametrize(
    ("state", "event"), [(QueueState.DISABLED, "QUEUE_ENABLED"), (QueueState.STOPPED, "STARTED"), (QueueState.FAULTED, "STARTED")]
)
def test_enabling_records_one_event_that_says_how_the_endpoint_was_halted(queue: Queue, state: QueueState, event: str) -> None:
    put(queue, state=state, reason="because")
    result = enable(queue.table, queue.clock)
    assert (result.before, result.reason) == (state.value, "because")
    assert queue.happened() == [(event, None)]
    assert (control(queue).state, control(queue).reason) == (QueueState.ENABLED, "")


def test_both_endpoints_of_a_queue_are_enabled_each_with_its_event(queue: Queue) -> None:
    put(queue, state=QueueState.DISABLED, poison_state=QueueState.FAULTED, poison_reason="poison")
    enable(queue.table, queue.clock)
    assert queue.happened() == [("QUEUE_ENABLED", None), ("STARTED", None)]
    assert control(queue).poison_state is QueueState.ENABLED


def test_sb_7_setting_a_queue_to_on_resets_its_counter_and_no_subscriber_forgets(broker: Queue) -> None:
    put(broker, state=QueueState.DISABLED)
    enable(broker.table, broker.clock)
    assert counters(broker) == SUBSCRIBED
    assert broker.happened() == [("QUEUE_ENABLED", None)]


def test_sb_7_a_queue_that_is_on_already_is_reset_without_an_event(broker: Queue) -> None:
    assert enable(broker.table, broker.clock).before == "enabled"
    assert counters(broker) == SUBSCRIBED
    assert broker.happened() == []


def test_wmq_8_the_counter_of_an_activation_specification_is_kept_over_a_start(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ActivationSpecification())
    put(queue, state=QueueState.STOPPED, counters={"sequential_failures": 1})
    enable(queue.table, queue.clock)
    assert counters(queue) == {"sequential_failures": 1}


def test_a_block_is_not_ended_by_enabling(queue: Queue) -> None:
    """Only its time, a restart of the engine or the removal of the message ends one."""
    blocked = control(queue).blocked(1, queue.clock.now() + LEASE)
    put(queue, counters=blocked.counters, state=QueueState.STOPPED)
    enable(queue.table, queue.clock)
    assert counters(queue) == blocked.counters


def test_enabling_an_enabled_queue_is_no_commit(queue: Queue) -> None:
    version = queue.table.snapshot().version
    enable(queue.table, queue.clock)
    assert queue.table.snapshot().version == version


# OFF ----------------------------------------------------------------------------------------------------------------


def test_sb_12_sb_18_a_queue_set_to_off_receives_nothing_and_says_why(queue: Queue) -> None:
    queue.sent("good")
    assert disable(queue.table, queue.clock, "we look at it").before == "enabled"
    with pytest.raises(QueueHaltedError, match=r"'orders' is disabled: we look at it\."):
        queue.receive()
    assert sorted(queue.rows(SubQueue.MAIN)) == [1]


def test_sb_14_setting_a_queue_to_off_by_hand_makes_no_event(queue: Queue) -> None:
    disable(queue.table, queue.clock)
    assert queue.happened() == []
    assert control(queue).reason == "it was switched off by hand"


def test_sb_19_what_is_sent_to_a_queue_that_is_off_arrives_in_order_when_it_is_on_again(queue: Queue) -> None:
    queue.sent("good")
    disable(queue.table, queue.clock)
    queue.sent("good").sent("good")
    assert sorted(queue.rows(SubQueue.TRANSMISSION)) == [2, 3]
    enable(queue.table, queue.clock)
    queue.sent("good")
    assert queue.receive().settled == 4
    assert delivered(queue) == [1, 2, 3, 4]


def test_disabling_twice_keeps_the_first_reason_and_is_no_commit(queue: Queue) -> None:
    disable(queue.table, queue.clock, "first")
    version = queue.table.snapshot().version
    assert disable(queue.table, queue.clock, "second").before == "disabled"
    assert (queue.table.snapshot().version, control(queue).reason) == (version, "first")


def test_a_faulted_queue_that_is_switched_off_remembers_its_fault(queue: Queue) -> None:
    put(queue, state=QueueState.FAULTED, reason="message 3 halted it")
    disable(queue.table, queue.clock, "off")
    assert control(queue).reason == "off; it was faulted before: message 3 halted it"


def test_a_pass_that_runs_finishes_its_claim_and_the_queue_stays_off(queue: Queue, at_point: AtPoint) -> None:
    queue.sent("good", "bad", "good")
    results = []
    at_point.do("store.claim.after_commit", lambda: results.append(disable(queue.table, queue.clock)))
    result = queue.receive()
    assert (results[0].before, results[0].receiving) == ("enabled", 3)
    assert (result.settled, result.poisoned) == (2, 1)
    assert control(queue).state is QueueState.DISABLED


def test_the_reader_of_the_poison_sub_queue_goes_on(queue: Queue) -> None:
    disable(queue.table, queue.clock)
    assert control(queue).poison_state is QueueState.ENABLED


# Settings -----------------------------------------------------------------------------------------------------------


def test_settings_are_merged_and_recorded_in_one_commit(queue: Queue) -> None:
    version = queue.table.snapshot().version
    result = alter(queue.table, queue.clock, settings={"receive_retry_count": 3, "retry_cycle_delay": 60})
    assert result.to_dict() == {"queue": "orders", "changed": {"receive_retry_count": [0, 3], "retry_cycle_delay": [1800, 60]}}
    assert dict(control(queue).policy) == queue.policy.to_dict() | {"receive_retry_count": 3, "retry_cycle_delay": 60}
    assert queue.table.snapshot().version == version + 1


def test_wmq_23_settings_can_be_given_in_the_manuals_words(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ActivationSpecification(stop_endpoint_if_delivery_fails=False))
    result = alter(queue.table, queue.clock, settings={"BOTHRESH": 3, "BOQNAME": "backout"})
    assert result.changed == {"backout_threshold": (0, 3), "backout_requeue_queue": ("", "backout")}


def test_sb_11_poison_handling_is_switched_off_in_the_manuals_words_and_sb_7_sets_the_counter_to_0(broker: Queue) -> None:
    with pytest.warns(ConfigurationWarning, match="poison_message_handling=False"):
        alter(broker.table, broker.clock, settings={"POISON_MESSAGE_HANDLING": "OFF"})
    assert control(broker).policy["poison_message_handling"] is False
    assert counters(broker) == SUBSCRIBED


@pytest.mark.parametrize("policy", [ActivationSpecification(reset_on_start=True), ActivationSpecification()], ids=["reset on start", "kept"])
def test_wmq_8_a_change_of_a_setting_is_no_start(store: QueueStore, tmp_path: Path, policy: ActivationSpecification) -> None:
    queue = a_queue(store, tmp_path, policy)
    put(queue, state=QueueState.STOPPED, counters={"sequential_failures": 1})
    with pytest.warns(ConfigurationWarning, match="stops at failure 1"):
        alter(queue.table, queue.clock, settings={"BOTHRESH": 7, "BOQNAME": "back"})
    assert counters(queue) == {"sequential_failures": 1}


@pytest.mark.parametrize("reset", [True, False])
def test_wmq_8_a_pass_is_no_start_and_an_enable_is_one(store: QueueStore, tmp_path: Path, reset: bool) -> None:  # noqa: FBT001
    settings = {"failureDeliveryCount": 2, "BOTHRESH": 1, "BOQNAME": "SYSTEM.DEAD.LETTER.QUEUE", "maxServerSessions": 1, "reset_on_start": reset}
    queue = a_queue(store, tmp_path, ActivationSpecification.from_dict(settings))

    one = queue.sent("bad").receive("one")
    two = queue.sent("bad").receive("two")

    assert (one.requeued, one.halted, one.counters) == (1, None, {"sequential_failures": 1})
    assert (two.halted is not None, counters(queue)["sequential_failures"]) == (True, 2)
    enable(queue.table, queue.clock)
    assert counters(queue).get("sequential_failures", 0) == (0 if reset else 2)


def test_wmq_27_messages_go_on_arriving_at_a_stopped_endpoint_and_a_start_receives_them(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ActivationSpecification()).sent("good")

    stopped = disable(queue.table, queue.clock, "the registry moves", endpoint_only=True)
    queue.sent("good")

    assert (stopped.before, control(queue).state, control(queue).reason) == ("enabled", QueueState.STOPPED, "the registry moves")
    assert [row["sub_queue"] for row in queue.rows().values()] == ["main", "main"]
    with pytest.raises(QueueHaltedError, match="stopped: the registry moves"):
        queue.receive("one")
    enable(queue.table, queue.clock)
    assert queue.receive("two").settled == 2
    assert queue.happened() == [("STARTED", None)]


def test_wmq_27_an_endpoint_that_is_halted_is_not_stopped_again(queue: Queue) -> None:
    disable(queue.table, queue.clock, "mine")

    assert disable(queue.table, queue.clock, "yours", endpoint_only=True).before == "disabled"
    assert (control(queue).state, control(queue).reason) == (QueueState.DISABLED, "mine")


def test_wmq_4_without_a_stop_there_is_no_counter(store: QueueStore, tmp_path: Path) -> None:
    queue = a_queue(store, tmp_path, ActivationSpecification())
    put(queue, state=QueueState.STOPPED, counters={"sequential_failures": 1})
    alter(queue.table, queue.clock, settings={"stop_endpoint_if_delivery_fails": False})
    assert counters(queue) == {}


def test_another_setting_leaves_the_counter_alone(broker: Queue) -> None:
    alter(broker.table, broker.clock, settings={"database_name": "sales"})
    assert counters(broker) == SUBSCRIBED | COUNTED


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"receive_retry_count": -1}, "receive_retry_count=-1"),
        ({"receive_retries": 1}, "receive_retry_count"),
        ({"system": "ServiceBroker"}, "another one is given as system, beside the settings"),
        ("max_retry_cycles=1", "values by name"),
        ({"max_retry_cycles": 1, "receive_error_handling": "Explode"}, "Explode"),
    ],
)
def test_settings_that_are_not_allowed_change_nothing(queue: Queue, settings: Any, says: str) -> None:
    version = queue.table.snapshot().version
    with pytest.raises(SettingError, match=says):
        alter(queue.table, queue.clock, settings=settings)
    assert queue.table.snapshot().version == version


def test_two_who_alter_at_once_both_have_their_way(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.alter.before_commit", lambda: alter(queue.table, queue.clock, settings={"receive_retry_count": 3}))
    alter(queue.table, queue.clock, settings={"max_retry_cycles": 4})
    assert (control(queue).policy["receive_retry_count"], control(queue).policy["max_retry_cycles"]) == (3, 4)


def test_the_next_pass_that_takes_the_recorded_settings_has_them(queue: Queue) -> None:
    from airflow_poison.rules import policy_from_dict

    alter(queue.table, queue.clock, settings={"receive_retry_count": 2})
    result = queue.sent("bad").receive(policy=policy_from_dict(control(queue).policy))
    assert (result.deliveries, result.poisoned) == (3, 1)


# Another policy -------------------------------------------------------------------------------------------------------


def test_other_settings_that_a_run_declares_leave_an_event_and_a_warning(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    declare(queue.store, "orders", queue.policy, queue.clock, "task receive")
    assert (queue.happened(), caplog.messages) == ([], [])
    declare(queue.store, "orders", replace(NO_RETRY, receive_retry_count=3), queue.clock, "task receive")
    [event] = queue.table.events()
    assert event.type is EventType.POLICY_CHANGED
    assert event.details == {"system": "Msmq4", "changed": "receive_retry_count: 0 -> 3", "run": "task receive"}
    assert caplog.messages == ["Queue 'orders' has other settings now, which this run declares: receive_retry_count: 0 -> 3"]


def test_settings_that_people_alter_leave_an_event(queue: Queue) -> None:
    alter(queue.table, queue.clock, settings={"max_retry_cycles": 4})
    alter(queue.table, queue.clock, settings={"max_retry_cycles": 4})
    assert [event.details["changed"] for event in queue.table.events()] == ["max_retry_cycles: 0 -> 4"]


def test_a_policy_of_another_system_is_refused_and_changes_nothing(queue: Queue) -> None:
    version = queue.sent("good").table.snapshot().version
    with pytest.raises(SystemChangeError, match=r"'orders' has the rules of Msmq4, .* of ServiceBroker.*alter orders --system ServiceBroker"):
        declare(queue.store, "orders", ServiceBroker(), queue.clock)
    assert queue.table.snapshot().version == version


def test_who_declares_another_system_while_people_alter_it_to_that_one_has_it(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.alter.before_commit", lambda: alter(queue.table, queue.clock, settings={}, system="ServiceBroker"))
    with pytest.raises(SystemChangeError, match="has the rules of ServiceBroker"):
        declare(queue.store, "orders", replace(NO_RETRY, receive_retry_count=3), queue.clock)
    assert control(queue).policy["system"] == "ServiceBroker"


def test_a_queue_is_altered_to_another_system_whose_counters_begin_anew(broker: Queue) -> None:
    put(broker, counters=SUBSCRIBED | COUNTED | {"blocked_until_us": 1, "blocked_by": 1})
    result = alter(broker.table, broker.clock, settings={"ReceiveRetryCount": 2}, system="Msmq4")
    assert (result.changed["system"], result.changed["receive_retry_count"]) == (("ServiceBroker", "Msmq4"), (None, 2))
    assert dict(control(broker).policy) == Msmq4(receive_retry_count=2).to_dict()
    assert counters(broker) == SUBSCRIBED
    assert declare(broker.store, "orders", Msmq4(receive_retry_count=2), broker.clock).snapshot() == broker.table.snapshot()


def test_the_systems_of_a_queue_that_is_received_or_has_services_or_that_nobody_would_read_are_not_altered(broker: Queue) -> None:
    before = control(broker)
    with pytest.raises(SettingError, match="reads the sub-queue poison"):
        alter(broker.table, broker.clock, settings={}, system="PoisonSubQueue")
    with pytest.raises(SettingError, match="system='Msmq5'"):
        alter(broker.table, broker.clock, settings={}, system="Msmq5")
    put(broker, services={"//shop": {}})
    with pytest.raises(SettingError, match="the services //shop; drop them first"):
        alter(broker.table, broker.clock, settings={}, system="Msmq4")
    put(broker, services={})
    broker.sent("good").table.claim("run", lease=LEASE, now=broker.clock.now(), max_messages=1)
    with pytest.raises(MessageClaimedError, match="is being received under the rules of ServiceBroker"):
        alter(broker.table, broker.clock, settings={}, system="Msmq4")
    assert control(broker) == before


# A new queue --------------------------------------------------------------------------------------------------------


def test_wmq_27_a_new_queue_begins_stopped_when_its_policy_says_so(store: QueueStore, tmp_path: Path) -> None:
    policy = ActivationSpecification(stop_endpoint_if_delivery_fails=False, endpoint_initial_state="INACTIVE")
    queue = a_queue(store, tmp_path, policy).sent("good")
    with pytest.raises(QueueHaltedError, match="is stopped: its policy says that it begins stopped: enable it"):
        queue.receive()
    enable(queue.table, queue.clock)
    assert queue.happened() == [("STARTED", None)]
    declare(store, "orders", policy, queue.clock)
    assert control(queue).state is QueueState.ENABLED
    assert queue.receive().settled == 1


def delivered(queue: Queue) -> list[int]:
    """The lookup ids in the order of their deliveries."""
    from pathlib import Path

    return [int(line.split()[1]) for line in Path(queue.handler.calls).read_text().splitlines() if line.startswith("call")]
