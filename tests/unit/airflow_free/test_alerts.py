"""Alerts come from recorded events, after the commit, at least once, with keys that stay the same when they are repeated."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import warnings
from base64 import b64decode
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import ActivationSpecification, DefaultMessaging, ListenerPort, Message, Msmq3, Msmq4, Outage, PoisonSubQueue, ServiceBroker
from airflow_poison.notifications import AlertTargets
from airflow_poison.passes.alerts import Alert, AlertKind, alert_subscription, send_alerts, send_backlog_alert
from airflow_poison.passes.alter import declare, enable
from airflow_poison.passes.due import return_due
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.history import error_subscription, hand_over
from airflow_poison.passes.move import remove
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import messages_to_batches, send
from airflow_poison.rules.queue_disabling import QueueDisabledDocument
from airflow_poison.store import open_store
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import VirtualClock, in_zone
from airflow_poison.values.errors import AlertError, PoisonMessageError
from airflow_poison.values.events import EventType
from airflow_poison.values.failures import ErrorHandler, PoisonErrorHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

CLOCK = VirtualClock()


def never(message: Message) -> None:
    raise ValueError("no")


@pytest.fixture(params=["delta", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStore:
    return open_store(str(tmp_path) if request.param == "delta" else f"memory://{tmp_path}")


def orders(store: QueueStore, handling: str, messages: int = 3) -> QueueTable:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling=handling)
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([b"{}"] * messages), key=f"send-{table.snapshot().version}", clock=CLOCK)
    return table


def receive(store: QueueStore, table: QueueTable, policy: Policy | None = None, key: str = "run") -> None:
    from airflow_poison.rules import policy_from_dict

    rules = policy or policy_from_dict(table.snapshot().control.policy)
    ReceivePass(table=table, policy=rules, handler=never, engine=LocalEngine, clock=CLOCK, isolation="none", store=store).run(key)


def test_messages_that_went_to_poison_make_one_alert_and_only_once(store: QueueStore) -> None:
    table = orders(store, "Move", messages=25)
    receive(store, table)
    told: list[Alert] = []
    assert send_alerts(table, "me", {"notes": told.append}, CLOCK) == told
    [alert] = told
    assert (alert.kind, alert.event, alert.queue, alert.count) == (AlertKind.POISON, "MOVED_POISON", "orders", 25)
    assert alert.lookup_ids == tuple(range(1, 21))
    assert "QueueHook().queue('orders').put_back()" in alert.what_to_do
    assert send_alerts(table, "me", {"notes": told.append}, CLOCK) == []


@pytest.mark.parametrize(("handling", "event", "word"), [("Drop", "DROPPED", "gone"), ("Reject", "REJECTED", "orders.dead-letter")])
def test_dropped_and_rejected_messages_are_alerted_with_what_to_do(store: QueueStore, handling: str, event: str, word: str) -> None:
    table = orders(store, handling)
    receive(store, table)
    [alert] = send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)
    assert (alert.event, alert.count) == (event, 3)
    assert word in alert.what_to_do


def test_a_halted_queue_is_alerted_with_its_reason_and_its_message(store: QueueStore) -> None:
    table = orders(store, "Fault")
    receive(store, table)
    assert table.snapshot().control.state is QueueState.FAULTED
    [alert] = send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)
    assert (alert.kind, alert.event, alert.lookup_ids) == (AlertKind.QUEUE_DISABLED, "FAULTED", (1,))
    assert alert.reason == "Message 1 of queue 'orders' halted it (faulted): ValueError: no."
    assert "queue('orders').remove(1)" in alert.what_to_do
    assert "its attempts are used up" in alert.what_to_do
    assert alert.details == {"endpoint": "orders", "system": "Msmq4", "error": "ValueError: no"}


def hostile(message: Message) -> None:
    raise ValueError("\u202egnp.\x1b[31m")


def test_what_an_error_says_steers_no_reader_of_an_alert(store: QueueStore) -> None:
    table = orders(store, "Fault")
    rules = Msmq4(receive_retry_count=0, max_retry_cycles=0)
    ReceivePass(table=table, policy=rules, handler=hostile, engine=LocalEngine, clock=CLOCK, isolation="none").run("run")
    [alert] = send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)
    assert alert.reason == r"Message 1 of queue 'orders' halted it (faulted): ValueError: \u202egnp.\x1b[31m."
    assert alert.details["error"] == r"ValueError: \u202egnp.\x1b[31m"


def test_a_queue_that_was_made_anew_has_other_keys(tmp_path: Path) -> None:
    # given the same queue twice, in the same place
    clock, keys = VirtualClock(), list[str]()
    for _ in range(2):
        store = open_store(str(tmp_path / "store"))
        table = orders(store, "Fault")
        receive(store, table)
        # when
        send_alerts(table, "me", {"notes": lambda alert: keys.append(alert.key)}, clock)
        clock.advance(timedelta(hours=1))
        send_backlog_alert(table, "me", timedelta(minutes=1), lambda alert: keys.append(alert.key), clock)
        shutil.rmtree(tmp_path / "store")
    # then
    assert len(set(keys)) == len(keys) == 4


def received(store: QueueStore, policy: Policy, messages: int = 1) -> QueueTable:
    """A queue of a system whose messages all fail, after one pass."""
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([b"{}"] * messages), key="sent", clock=CLOCK)
    receive(store, table, policy)
    return table


def alerts_of(table: QueueTable) -> list[Alert]:
    return send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)


def test_sb_5_sb_16_a_disabled_queue_makes_one_alert_that_carries_the_event_document(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, ServiceBroker(database_name="shop"), messages=2))

    assert (alert.kind, alert.event, alert.lookup_ids, alert.count) == (AlertKind.QUEUE_DISABLED, "QUEUE_DISABLED", (1,), 1)
    document = QueueDisabledDocument.from_xml(alert.details["document"])
    assert (document.queue, document.database_name, document.post_time) == ("orders", "shop", CLOCK.now())
    assert alert.reason.endswith("halted it (disabled): ValueError: no. 5 receives in a row were rolled back.")
    assert "QueueHook().queue('orders').inspect(mode='browse')" in alert.what_to_do
    assert "QueueHook().queue('orders').enable()" in alert.what_to_do
    assert "what is sent to the queue waits" in alert.what_to_do


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        pytest.param(ActivationSpecification(max_server_sessions=1), "CWWMQ0007W", id="WMQ-28"),
        pytest.param(ListenerPort(), "WMSG0036E", id="LP-5"),
    ],
)
def test_a_stopped_endpoint_is_alerted_with_the_product_s_message(store: QueueStore, policy: Policy, code: str) -> None:
    [alert] = alerts_of(received(store, policy))

    assert (alert.event, alert.details["code"], alert.lookup_ids) == ("STOPPED", code, (1,))
    assert f"halted it (stopped): ValueError: no. {code}: The " in alert.reason
    assert "begins at the top of the queue" in alert.what_to_do


def test_m3_10_a_listener_that_forgets_gives_the_message_fresh_attempts(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, Msmq3(receive_retry_count=0)))

    assert (alert.event, alert.details["system"]) == ("FAULTED", "Msmq3")
    assert "The message has fresh attempts then" in alert.what_to_do


def test_the_reader_of_the_poison_sub_queue_halts_under_its_own_name(store: QueueStore) -> None:
    table = orders(store, "Move", messages=1)
    receive(store, table)
    alerts_of(table)

    receive(store, table, PoisonSubQueue(receive_retry_count=0, receive_error_handling="Fault"), key="reader")

    [alert] = alerts_of(table)
    assert "of queue 'orders;poison' halted it (faulted)" in alert.reason
    assert "QueueHook().queue('orders').enable()" in alert.what_to_do


def test_every_halt_is_an_alert_of_its_own_also_when_several_are_told_together(store: QueueStore) -> None:
    table = orders(store, "Fault", messages=2)
    for key in ("first", "second"):
        receive(store, table, key=key)
        enable(table, CLOCK)
        remove(table, 1 if key == "first" else 2, CLOCK)
    tried: list[Alert] = []

    def broken(alert: Alert) -> None:
        tried.append(alert)
        raise ConnectionError

    with pytest.raises(AlertError, match="2 of 2 alerts"):
        send_alerts(table, "me", {"notes": broken}, CLOCK)
    assert [(alert.event, alert.lookup_ids, alert.count) for alert in tried] == [("FAULTED", (1,), 1), ("FAULTED", (2,), 1)]
    assert tried[0].key != tried[1].key
    assert [alert.key for alert in alerts_of(table)] == [alert.key for alert in tried]


def test_wmq_10_requeued_messages_are_alerted_with_the_backout_queue(store: QueueStore) -> None:
    policy = ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=1, backout_requeue_queue="B.Q")
    declare(store, "B.Q", policy, CLOCK)

    [alert] = alerts_of(received(store, policy, messages=3))

    assert (alert.kind, alert.event, alert.count, alert.lookup_ids) == (AlertKind.POISON, "REQUEUED", 3, (1, 2, 3))
    assert alert.reason == "3 messages of queue 'orders': moved to the backout queue 'B.Q'. 2362 MQRC_BACKOUT_THRESHOLD_REACHED."
    assert "queue('B.Q').send_to(" in alert.what_to_do
    assert alert.details == {"reason": "2362 MQRC_BACKOUT_THRESHOLD_REACHED", "place": "B.Q"}


def test_wmq_24_dead_lettered_messages_are_alerted_with_what_stood_in_the_way(store: QueueStore) -> None:
    policy = ActivationSpecification(stop_endpoint_if_delivery_fails=False, backout_threshold=1, backout_requeue_queue="B.Q")

    [alert] = alerts_of(received(store, policy))

    assert alert.event == "DEAD_LETTERED"
    assert "moved to the dead-letter queue 'SYSTEM.DEAD.LETTER.QUEUE'" in alert.reason
    assert alert.details["obstacle"] in alert.reason
    assert "B.Q" in alert.details["obstacle"]
    assert b64decode(alert.details["mq.dead_letter_header"]).startswith(b"DLH ")


def test_dmp_18_exceptioned_messages_are_alerted_with_their_exception_properties(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, DefaultMessaging(max_failed_deliveries=1), messages=2))

    assert (alert.kind, alert.event, alert.count) == (AlertKind.POISON, "EXCEPTIONED", 2)
    assert (alert.details["JMS_IBM_ExceptionReason"], alert.details["JMS_IBM_ExceptionProblemDestination"]) == ("SIRC0035", "orders")
    assert "moved to the exception destination '_SYSTEM.Exception.Destination.ME1'" in alert.reason


def test_dmp_17_a_missing_exception_destination_is_warned_of_in_the_alert(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, DefaultMessaging(max_failed_deliveries=1, exception_destination="errQ")))

    assert alert.details["warning"].startswith("CWSIP0291")
    assert alert.details["warning"] in alert.reason


KEPT = "exception_destination=None: a message that has used its deliveries stays"


def blocking(**settings: object) -> DefaultMessaging:
    with warnings.catch_warnings(action="ignore"):
        return DefaultMessaging(max_failed_deliveries=1, exception_destination="None", **settings)  # type: ignore[arg-type]  # settings


def test_dmp_9_a_queue_that_is_blocked_for_a_while_is_alerted_and_goes_on_by_itself(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, blocking(), messages=2))

    until = CLOCK.now() + timedelta(seconds=5)
    assert (alert.kind, alert.event, alert.lookup_ids, alert.details["until"]) == (AlertKind.BLOCKED, "BLOCKED", (1,), until.isoformat())
    assert alert.reason == f"1 message of queue 'orders': blocked, the whole queue waits until {until:%Y-%m-%d %H:%M:%S} UTC. {KEPT}."
    assert "goes on by itself" in alert.what_to_do


def test_dmp_10_a_message_that_waits_for_ever_needs_somebody(store: QueueStore) -> None:
    [alert] = alerts_of(received(store, blocking(override_blocked_retry_timeout=True, destination_blocked=False)))

    assert alert.reason == f"1 message of queue 'orders': blocked, waiting at their place until the broker is restarted. {KEPT}."
    assert "QueueHook().queue('orders').restart('broker')" in alert.what_to_do
    assert "queue('orders').remove(1)" in alert.what_to_do


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault"), "queue_disabled"),
        (Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move"), "poison"),
        (blocking(), "blocked"),
    ],
)
def test_each_kind_has_its_own_receivers_who_see_plain_values(store: QueueStore, policy: Policy, told: str) -> None:
    heard: list[tuple[str, str]] = []

    def listener(name: str) -> Callable[[Any], None]:
        return lambda context: heard.append((name, json.dumps(context["poison_alert"]["details"])))

    targets = AlertTargets.of(listener("queue_disabled"), [listener("poison")], on_blocked=listener("blocked"))
    [alert] = targets.send(received(store, policy), "me", {}, CLOCK, logging.getLogger("task"))

    assert heard == [(told, json.dumps(alert["details"]))]
    assert json.loads(heard[0][1]) != {}


def test_on_outage_and_on_outage_over_hear_once_each(store: QueueStore) -> None:
    heard: list[str] = []

    def listener(name: str) -> Callable[[Any], None]:
        return lambda context: heard.append(f"{name}: {context['poison_alert']['event']} {context['poison_alert']['reason']}")

    targets = AlertTargets.of(listener("poison"), on_outage=listener("outage"), on_outage_over=[listener("over")])
    table, clock = orders(store, "Move", messages=12), VirtualClock()
    looking = ReceivePass(
        table=table,
        policy=Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Move"),
        handler=f"{__name__}:never",
        engine=LocalEngine,
        clock=clock,
        isolation="none",
        outage=Outage(at_least=6, probe=2),
    )
    with in_zone("default_timezone", "Asia/Kolkata"):
        for number in range(3):
            looking.run(f"looks {number}")
            targets.send(table, "me", {}, clock, logging.getLogger("task"))
            clock.advance(timedelta(minutes=5))
        replace(looking, outage=None).run("charges")
        targets.send(table, "me", {}, clock, logging.getLogger("task"))

    began, over = heard
    since = "since 2013-01-01 05:30:00 IST"
    assert began.startswith("outage: OUTAGE_BEGAN")
    assert f"has an outage {since}, no poison" in began
    assert over == f"over: OUTAGE_OVER The outage of queue 'orders' {since} is over."
    assert AlertTargets.of(on_outage=listener("outage"))
    assert not AlertTargets.of()


@pytest.mark.parametrize(
    ("policy", "is_stop"),
    [
        pytest.param(ServiceBroker(), False, id="disabled"),
        pytest.param(ListenerPort(), True, id="stopped"),
        pytest.param(Msmq4(receive_retry_count=0, max_retry_cycles=0, receive_error_handling="Fault"), True, id="faulted"),
    ],
)
def test_on_stopped_hears_of_the_halts_only_those_that_are_no_switching_off(store: QueueStore, policy: Policy, *, is_stop: bool) -> None:
    heard: list[str] = []

    def listener(name: str) -> Callable[[Any], None]:
        return lambda _context: heard.append(name)

    both, table, log = listener("both"), received(store, policy), logging.getLogger("task")
    alone = AlertTargets.of(on_stopped=listener("stopped")).send(table, "alone", {}, CLOCK, log)
    assert (heard, len(alone)) == ((["stopped"], 1) if is_stop else ([], 0))
    heard.clear()
    AlertTargets.of(on_queue_disabled=[listener("halted"), both], on_stopped=[listener("stopped"), both]).send(table, "all", {}, CLOCK, log)
    assert heard == ["halted", "both"] + ["stopped"] * is_stop


def test_a_backlog_is_told_beside_what_has_happened_and_also_when_another_notifier_fails(store: QueueStore) -> None:
    clock, heard = VirtualClock(), list[str]()
    table = received(store, ServiceBroker())
    clock.advance(timedelta(days=2))

    def fails(_context: Any) -> None:
        raise ValueError("no network")

    targets = AlertTargets.of(fails, on_backlog=lambda context: heard.append(context["poison_alert"]["event"]), backlog_older_than=timedelta(days=1))
    with pytest.raises(AlertError, match="no network"):
        targets.send(table, "me", {}, clock, logging.getLogger("task"))
    assert heard == ["BACKLOG_TOO_OLD"]


def test_a_notifier_that_exits_or_changes_its_alert_or_has_no_text_takes_none_from_others(store: QueueStore) -> None:
    heard: list[Any] = []

    def exits(_context: Any) -> None:
        raise SystemExit(0)

    def changes(context: Any) -> None:
        context["poison_alert"]["details"].clear()
        context["poison_alert"].clear()

    class Silent:
        def __call__(self, _context: Any) -> None:
            raise ValueError("no network")

        def __repr__(self) -> str:
            raise RuntimeError("no text")

    targets = AlertTargets.of([exits, changes, Silent(), lambda context: heard.append(context["poison_alert"])])
    with pytest.raises(AlertError, match=r"1 of 1 alerts of queue 'orders' failed: .*it called sys.exit\(0\)"):
        targets.send(received(store, ServiceBroker()), "me", {}, CLOCK, logging.getLogger("task"))
    [alert] = heard
    assert alert["details"]["endpoint"] == "orders"


class Notifier:
    """Notes the messages of its alerts by their keys; and cannot be reached for as long as it raises something."""

    def __init__(self, raises: BaseException | None = None) -> None:
        self.raises, self.heard, self.tried = raises, list[tuple[str, list[int]]](), list[str]()

    def __call__(self, context: Any) -> None:
        alert = context["poison_alert"]
        self.tried.append(alert["key"])
        if self.raises is not None:
            raise self.raises
        self.heard.append((alert["key"], alert["lookup_ids"]))


def test_a_notifier_that_fails_keeps_no_alert_from_others_and_gets_all_later(store: QueueStore) -> None:
    table, broken, pager = orders(store, "Move", messages=1), Notifier(ConnectionError("token expired")), Notifier()
    targets = AlertTargets.of(on_poison=[broken, pager])
    # when it fails in three runs, between which more has happened
    for number in range(3):
        receive(store, table, key=f"run {number}")
        with pytest.raises(AlertError, match="token expired"):
            targets.send(table, "me", {}, CLOCK, logging.getLogger("task"))
        orders(store, "Move", messages=1)
    # then
    assert [ids for _, ids in pager.heard] == [[1], [2], [3]]
    assert len(set(broken.tried)) == 1, "it gets the same alert again"
    # when it is mended
    broken.raises = None
    targets.send(table, "me", {}, CLOCK, logging.getLogger("task"))
    # then it has all, and goes on with the others
    assert [number for _, ids in broken.heard for number in ids] == [1, 2, 3]
    assert broken.heard[0][0] == broken.tried[0] == pager.heard[0][0]
    receive(store, table, key="last")
    targets.send(table, "me", {}, CLOCK, logging.getLogger("task"))
    assert (broken.heard[-1], len(broken.heard), len(pager.heard)) == (pager.heard[-1], 3, 4)
    assert not [name for name in table.snapshot().control.counters if "Notifier" in name]


def test_a_notifier_that_fails_repeats_no_backlog_to_others(store: QueueStore) -> None:
    table, broken, pager, clock = orders(store, "Move", messages=1), Notifier(ConnectionError("token expired")), Notifier(), VirtualClock()
    clock.advance(timedelta(days=2))
    targets = AlertTargets.of(on_backlog=[broken, pager], backlog_older_than=timedelta(days=1))
    for _ in range(2):
        with pytest.raises(AlertError, match="token expired"):
            targets.send(table, "me", {}, clock, logging.getLogger("task"))
    broken.raises = None
    targets.send(table, "me", {}, clock, logging.getLogger("task"))
    assert broken.heard == pager.heard == [(broken.tried[0], [1])]


def test_a_run_that_dies_after_one_notifier_has_failed_leaves_the_alert_to_both(store: QueueStore) -> None:
    table, broken, dying = orders(store, "Move", messages=1), Notifier(ConnectionError("no network")), Notifier(KeyboardInterrupt())
    targets = AlertTargets.of(on_poison=[broken, dying])
    receive(store, table)
    with pytest.raises(KeyboardInterrupt):
        targets.send(table, "me", {}, CLOCK, logging.getLogger("task"))
    broken.raises = dying.raises = None
    targets.send(table, "me", {}, CLOCK, logging.getLogger("task"))
    assert broken.heard == dying.heard == [(broken.tried[0], [1])]
    assert targets.send(table, "me", {}, CLOCK, logging.getLogger("task")) == []


def test_asynchronous_functions_are_waited_for(store: QueueStore) -> None:
    heard: list[str] = []

    async def report(context: Any) -> None:
        await asyncio.sleep(0)
        heard.append(context["poison_alert"]["event"])

    AlertTargets.of(report).send(received(store, ServiceBroker()), "me", {}, CLOCK, logging.getLogger("task"))
    assert heard == ["QUEUE_DISABLED"]


def test_an_alert_that_fails_is_given_again_with_the_same_key_though_more_has_happened(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    tried: list[Alert] = []

    def broken(alert: Alert) -> None:
        tried.append(alert)
        raise ConnectionError("no network")

    with pytest.raises(AlertError, match=r"1 of 1 alerts of queue 'orders' failed: MOVED_POISON \(ConnectionError: no network\)"):
        send_alerts(table, "me", {"notes": broken}, CLOCK)
    orders(store, "Move", messages=2)
    receive(store, table, key="later")
    [again, later] = send_alerts(table, "me", {"notes": tried.append}, CLOCK)
    assert (again.key, again.count) == (tried[0].key, 3)
    assert (later.count, later.lookup_ids) == (2, (4, 5))
    assert later.key != again.key


def test_what_a_target_owes_that_has_another_name_now_goes_to_all_that_are_there(store: QueueStore) -> None:
    """A notifier whose token has expired is replaced by another function: the new one was without the alerts that the old one owed."""
    table, renamed, other = orders(store, "Move"), list[Alert](), list[Alert]()
    receive(store, table)
    with pytest.raises(AlertError):
        send_alerts(table, "me", {"old": fails}, CLOCK)
    receive_more(store, table)
    sent = send_alerts(table, "me", {"new": renamed.append, "other": other.append}, CLOCK)
    assert [alert.count for alert in sent] == [3, 1]
    assert renamed == other == sent
    assert not [name for name in table.snapshot().control.counters if "#" in name]
    assert send_alerts(table, "me", {"new": renamed.append}, CLOCK) == []


def test_of_several_targets_that_are_gone_the_oldest_debt_is_the_one_that_counts(store: QueueStore) -> None:
    table, heard = orders(store, "Move"), list[Alert]()
    receive(store, table)
    with pytest.raises(AlertError):
        send_alerts(table, "me", {"first": fails, "second": lambda _: None}, CLOCK)
    receive_more(store, table)
    with pytest.raises(AlertError):
        send_alerts(table, "me", {"second": fails, "third": lambda _: None, "first": fails}, CLOCK)
    with pytest.raises(AlertError):
        send_alerts(table, "me", {"third": fails}, CLOCK)
    send_alerts(table, "me", {"fourth": heard.append}, CLOCK)
    assert [alert.count for alert in heard] == [3, 1]


def fails(_alert: Alert) -> None:
    raise ConnectionError("no network")


def test_a_process_that_dies_while_telling_leaves_the_alert_to_the_next(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    keys: list[str] = []

    def die(alert: Alert) -> None:
        keys.append(alert.key)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send_alerts(table, "me", {"notes": die}, CLOCK)
    [alert] = send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)
    assert [alert.key] == keys


def test_what_has_happened_since_a_run_died_is_told_by_the_same_run_that_repeats_its_alerts(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    with pytest.raises(KeyboardInterrupt):
        send_alerts(table, "me", {"notes": dies}, CLOCK)
    receive(store, orders(store, "Move"), key="later")
    told = send_alerts(table, "me", {"notes": lambda _: None}, CLOCK)
    assert [alert.lookup_ids for alert in told] == [(1, 2, 3), (4, 5, 6)]
    assert send_alerts(table, "me", {"notes": lambda _: None}, CLOCK) == []


def test_a_range_that_a_dead_run_left_is_closed_though_nothing_of_it_is_wanted_any_more(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    with pytest.raises(KeyboardInterrupt):
        send_alerts(table, "me", {"notes": dies}, CLOCK, kinds=[AlertKind.POISON])
    assert send_alerts(table, "me", {"notes": lambda _: None}, CLOCK, kinds=[AlertKind.QUEUE_DISABLED]) == []
    receive(store, orders(store, "Move"), key="later")
    assert [alert.lookup_ids for alert in send_alerts(table, "me", {"notes": lambda _: None}, CLOCK)] == [(4, 5, 6)]


def dies(alert: Alert) -> None:
    raise KeyboardInterrupt


def test_a_run_that_another_one_overtakes_before_it_begins_to_tell_takes_nothing_back(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have looked; the other one tells all before this one notes that it begins. The fault campaign saw all told again, under other keys."""
    table, told = orders(store, "Move"), list[str]()
    receive(store, table)
    looked = table.events

    def overtaken(_table: QueueTable, *given: Any, **how: Any) -> Any:
        monkeypatch.undo()
        found = list(looked(*given, **how))
        receive_more(store, table)
        send_alerts(table, "me", {"notes": lambda alert: told.append(alert.key)}, CLOCK)
        return iter(found)

    monkeypatch.setattr(type(table), "events", overtaken)
    assert send_alerts(table, "me", {"notes": lambda alert: told.append(alert.key)}, CLOCK) == []
    assert alerts_of(table) == []
    assert len(told) == 1


def test_a_run_that_ends_behind_another_one_takes_nothing_back(store: QueueStore) -> None:
    table, told = orders(store, "Move"), list[str]()
    receive(store, table)

    def report(alert: Alert) -> None:
        told.append(alert.key)
        if len(told) == 1:
            send_alerts(table, "me", {"notes": report}, CLOCK)  # the same range, which this run leaves unfinished
            receive_more(store, table)
            send_alerts(table, "me", {"notes": report}, CLOCK)

    send_alerts(table, "me", {"notes": report}, CLOCK)
    assert alerts_of(table) == []
    assert len(told) == 3
    assert told[0] == told[1] != told[2]


def receive_more(store: QueueStore, table: QueueTable) -> None:
    send(table, messages_to_batches([b"{}"]), key="more", clock=CLOCK)
    receive(store, table, key="more")


def test_every_subscriber_is_told_and_one_that_begins_now_hears_nothing_of_the_past(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    alert_subscription(table, "late", CLOCK).begin()
    assert len(send_alerts(table, "early", {"notes": lambda _alert: None}, CLOCK)) == 1
    assert len(send_alerts(table, "other", {"notes": lambda _alert: None}, CLOCK)) == 1
    assert send_alerts(table, "late", {"notes": lambda _alert: None}, CLOCK) == []


def test_only_the_kinds_that_somebody_wants_are_told(store: QueueStore) -> None:
    table = orders(store, "Move")
    receive(store, table)
    assert send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK, kinds=[AlertKind.QUEUE_DISABLED]) == []


def test_a_run_without_anything_to_tell_writes_nothing(store: QueueStore) -> None:
    table = orders(store, "Move")
    version = table.snapshot().version
    send_alerts(table, "me", {"notes": lambda _alert: None}, CLOCK)
    assert table.snapshot().version == version


def test_an_error_handler_is_told_of_a_hopeless_message_once_in_each_cycle(store: QueueStore) -> None:
    policy = Msmq4(receive_retry_count=0, max_retry_cycles=2, retry_cycle_delay=timedelta(0), receive_error_handling="Fault")
    table = declare(store, "orders", policy, CLOCK)
    send(table, messages_to_batches([b"{}"]), key="k", clock=CLOCK)
    handler = PoisonErrorHandler()
    error_subscription(table, "me", CLOCK).begin()
    for cycle in range(3):
        return_due(table, CLOCK)
        receive(store, table, policy, key=f"cycle {cycle}")
        assert hand_over(table, "me", handler, CLOCK) == []
    assert handler.lookup_ids == [1, 1, 1]  # spec WCF-18: max_retry_cycles + 1 times
    assert [event.type for event in table.events() if event.type is EventType.FAULTED] == [EventType.FAULTED]


def test_an_error_handler_that_raises_is_told_again(store: QueueStore) -> None:
    class Broken(ErrorHandler):
        def handle_error(self, error: BaseException) -> bool:
            raise error

    table = orders(store, "Move", messages=1)
    receive(store, table)
    with pytest.raises(PoisonMessageError):
        hand_over(table, "me", Broken(), CLOCK)
    for told in ([1], []):
        handler = PoisonErrorHandler()
        assert hand_over(table, "me", handler, CLOCK) == []
        assert handler.lookup_ids == told


def test_wcf_26_what_an_error_handler_did_not_deal_with_is_returned_once(store: QueueStore) -> None:
    class Second(ErrorHandler):
        def handle_error(self, error: BaseException) -> bool:
            return isinstance(error, PoisonMessageError) and error.lookup_id == 2

    table = orders(store, "Move", messages=3)
    error_subscription(table, "me", CLOCK).begin()
    receive(store, table)

    assert hand_over(table, "me", Second(), CLOCK) == [1, 3]
    assert hand_over(table, "me", Second(), CLOCK) == []
