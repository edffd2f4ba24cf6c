"""What people change of a queue at run time: ON, OFF, and settings; and how a new queue begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.core.errors import ConfigurationWarning, QueueHaltedError, SettingError
from airflow_poison.core.message import SubQueue
from airflow_poison.core.passes.alter import alter, disable, enable
from airflow_poison.core.passes.declare import declare
from airflow_poison.core.policies.activation_specification import ActivationSpecification
from airflow_poison.core.policies.service_broker import ServiceBroker
from airflow_poison.core.store.control import QueueState
from tests.unit.passes.given import LEASE, a_queue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_poison.core.store.control import Control
    from airflow_poison.core.store.seam import QueueStore
    from tests.store.points import AtPoint
    from tests.unit.passes.given import Queue

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
    queue.table.alter(lambda control: replace(control, **cells), lambda _before, _after: (), queue.clock.now())  # type: ignore[arg-type]  # the names are the fields'


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
    assert control(queue).reason == "somebody switched it off"


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


def test_another_setting_leaves_the_counter_alone(broker: Queue) -> None:
    alter(broker.table, broker.clock, settings={"database_name": "sales"})
    assert counters(broker) == SUBSCRIBED | COUNTED


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"receive_retry_count": -1}, "receive_retry_count=-1"),
        ({"receive_retries": 1}, "receive_retry_count"),
        ({"system": "ServiceBroker"}, "system"),
        ({"max_retry_cycles": 1, "receive_error_handling": "Explode"}, "Explode"),
    ],
)
def test_settings_that_are_not_allowed_change_nothing(queue: Queue, settings: dict[str, object], says: str) -> None:
    version = queue.table.snapshot().version
    with pytest.raises(SettingError, match=says):
        alter(queue.table, queue.clock, settings=settings)
    assert queue.table.snapshot().version == version


def test_two_who_alter_at_once_both_have_their_way(queue: Queue, at_point: AtPoint) -> None:
    at_point.do("store.alter.before_commit", lambda: alter(queue.table, queue.clock, settings={"receive_retry_count": 3}))
    alter(queue.table, queue.clock, settings={"max_retry_cycles": 4})
    assert (control(queue).policy["receive_retry_count"], control(queue).policy["max_retry_cycles"]) == (3, 4)


def test_the_next_pass_that_takes_the_recorded_settings_has_them(queue: Queue) -> None:
    from airflow_poison.core.policies import policy_from_dict

    alter(queue.table, queue.clock, settings={"receive_retry_count": 2})
    result = queue.sent("bad").receive(policy=policy_from_dict(control(queue).policy))
    assert (result.deliveries, result.poisoned) == (3, 1)


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
