"""Recovery from a poison message of a dialog: its conversation ends with an error, whose partner and keeper are told (spec SB-26 to SB-34)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, table_to_messages
from airflow_poison.dialogs.services import Contract, Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, ERROR, ErrorDocument
from airflow_poison.passes.alerts import send_alerts
from airflow_poison.passes.alter import declare, disable, enable
from airflow_poison.passes.conversations import conversations, declare_services
from airflow_poison.passes.decide import Decision, choices, decide, suspect, suspect_conversation
from airflow_poison.passes.dialogs import begin_dialogs, end_conversation, send_on, set_timer
from airflow_poison.passes.halts import halted_endpoint
from airflow_poison.passes.inspect import inspect
from airflow_poison.passes.move import remove, remove_messages
from airflow_poison.passes.recovery import Ending, recover
from airflow_poison.passes.relay import transmit
from airflow_poison.passes.runs import halted
from airflow_poison.rules.queue_disabling import EndConversation
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.errors import ConversationLockedError, ConversationNotFoundError, DecisionOutdatedError, SettingError
from tests.given.passes import Handler, Queue

if TYPE_CHECKING:
    from airflow_poison.passes.decide import DecideResult
    from airflow_poison.passes.recovery import ConversationEnded, RecoverResult
    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable
    from tests.given.points import AtPoint

PARTS = Contract("parts", {"order": "INITIATOR", "shipped": "TARGET"})
ORDERS = ["end_then_enable", "enable_then_end"]
BOTH_ORDERS = pytest.mark.parametrize("order", ORDERS)


class Died(BaseException):
    """Stands for the death of the process."""


@dataclass
class Shop:
    """A queue that a message of a dialog has disabled: d1 holds "bad" and "good", d2 "good"; and the queue of their partner."""

    warehouse: Queue
    orders: QueueTable
    d1: str
    d2: str
    at_orders: str
    told: list[ConversationEnded] = field(default_factory=list)

    @property
    def table(self) -> QueueTable:
        return self.warehouse.table

    @property
    def clock(self) -> VirtualClock:
        return self.warehouse.clock

    @property
    def state(self) -> QueueState:
        return self.table.snapshot().control.state

    def ordered(self, order: str) -> None:
        settings = replace(ServiceBroker(), recovery_order=order).to_dict()
        self.table.alter(lambda control: replace(control, policy=settings))

    def recover(self, **changes: object) -> RecoverResult:
        given = {"store": self.warehouse.store, "on_ended": self.told.append} | changes
        return recover(self.table, self.clock, **given)  # type: ignore[arg-type]  # the verb's own

    def ending(self, **changes: object) -> Ending:
        plain = Ending(self.table, self.clock, self.warehouse.store, 31, "Torn.", on_ended=self.told.append)
        return replace(plain, **changes)  # type: ignore[arg-type]  # its own fields


@pytest.fixture
def shop(store: QueueStore, tmp_path: Path) -> Shop:
    clock, policy = VirtualClock(), ServiceBroker()
    orders, warehouse = (declare(store, name, policy, clock) for name in ("orders", "warehouse"))
    declare_services(store, orders, [Service("Orders", [PARTS])])
    declare_services(store, warehouse, [Service("Warehouse", [PARTS])])
    dialogs = [Dialog(messages=[("order", b"bad"), ("order", b"good")]), Dialog(messages=[("order", b"good")])]
    handles = begin_dialogs(orders, service="Orders", far_service="Warehouse", contract="parts", dialogs=dialogs, key="b", clock=clock).conversations
    transmit(store, orders, clock)
    queue = Queue(store, warehouse, policy, Handler(str(tmp_path / "calls")), clock)
    queue.receive()
    assert warehouse.snapshot().control.state is QueueState.DISABLED
    far = {row.conversation_id: row.handle for row in conversations(warehouse)}
    return Shop(queue, orders, far[handles[0]], far[handles[1]], handles[0])


def waiting(table: QueueTable) -> list[tuple[str, bytes]]:
    """Type and body of what waits in ``main``, in order of arrival."""
    files = sorted((file for file in table.snapshot().files if file.sub_queue == "main"), key=lambda file: file.min_lookup_id)
    found = [message for file in files for message in table_to_messages(table.read(file, list(MESSAGE_COLUMNS)))]
    return [(message.message_type, message.body) for message in found if message is not None]


def errors(table: QueueTable) -> list[tuple[int, str]]:
    documents = [ErrorDocument.from_xml(body) for kind, body in waiting(table) if kind == ERROR]
    return [(document.code, document.description) for document in documents]


@BOTH_ORDERS
def test_sb_26_sb_32_the_conversation_ends_with_error_127_and_the_partner_is_told(shop: Shop, order: str) -> None:
    shop.ordered(order)
    result = shop.recover()
    assert result.steps == (("end_conversation", "enable") if order == "end_then_enable" else ("enable", "end_conversation"))
    assert [message.body for message in result.removed] == [b"bad", b"good"]
    assert (shop.state, waiting(shop.table)) == (QueueState.ENABLED, [("order", b"good")])
    assert errors(shop.orders) == [(127, "Unable to process message.")]
    assert [row.state for row in conversations(shop.table, ended=True) if row.handle == shop.d1] == ["CD"]


def test_sb_31_the_local_application_gets_nothing_and_whoever_keeps_its_state_is_told(shop: Shop) -> None:
    result = shop.recover()
    [told] = shop.told
    assert told == result.ended
    assert (told.conversation, told.conversation_id, told.service, told.far_service) == (shop.d1, shop.at_orders, "Warehouse", "Orders")
    assert (told.queue, told.error, told.description, told.cleanup) == ("warehouse", 127, "Unable to process message.", False)
    assert shop.warehouse.receive("later").received == 1  # d2's message


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("point", ["pass.act.after_commit", "pass.ending.before_telling", "pass.transmit.before_removal"])
def test_a_recovery_that_was_killed_is_finished_and_its_keeper_told_at_least_once(shop: Shop, at_point: AtPoint, point: str, order: str) -> None:
    shop.ordered(order)

    def die() -> None:
        raise Died

    culprit = shop.table.snapshot().control.halted_by
    at_point.do(point, die)
    with pytest.raises(Died):
        shop.recover()
    result = shop.recover(lookup_id=culprit)
    assert (result.removed, result.ended, shop.told) == ((), shop.told[0], [result.ended])
    assert (shop.state, errors(shop.orders)) == (QueueState.ENABLED, [(127, "Unable to process message.")])


def test_a_keeper_that_fails_is_told_again_and_the_partner_was_told(shop: Shop) -> None:
    def fails(_ended: ConversationEnded) -> None:
        raise RuntimeError("no database")

    with pytest.raises(RuntimeError, match="no database"):
        shop.recover(on_ended=fails)
    assert (shop.state, errors(shop.orders)) == (QueueState.DISABLED, [(127, "Unable to process message.")])
    shop.recover()
    assert (shop.state, len(shop.told), len(errors(shop.orders))) == (QueueState.ENABLED, 1, 1)


@BOTH_ORDERS
def test_a_partner_whose_queue_is_damaged_does_not_keep_the_queue_disabled(shop: Shop, order: str, caplog: pytest.LogCaptureFixture) -> None:
    if not shop.warehouse.store.is_folder:
        pytest.skip("nobody takes files away with a rename")
    shop.ordered(order)
    end_conversation(shop.table, shop.d2, error=9, key="e", clock=shop.clock)
    transmit(shop.warehouse.store, shop.table, shop.clock)
    lost = Path(shop.orders.uri, shop.orders.snapshot().files[0].path)
    lost.rename(shop.orders.uri + ".aside")
    shop.recover()
    assert (shop.state, len(shop.told), len(shop.table.snapshot().transmissions)) == (QueueState.ENABLED, 1, 1)
    assert "orders" in caplog.text
    Path(shop.orders.uri + ".aside").rename(lost)
    transmit(shop.warehouse.store, shop.table, shop.clock)
    assert errors(shop.orders) == [(9, ""), (127, "Unable to process message.")]


def test_without_a_store_the_partner_is_told_by_the_next_pass(shop: Shop) -> None:
    shop.recover(store=None)
    assert errors(shop.orders) == []
    shop.warehouse.receive("later")
    assert errors(shop.orders) == [(127, "Unable to process message.")]


def test_a_message_whose_conversation_was_ended_is_removed_and_nobody_is_told_twice(shop: Shop) -> None:
    """It came from a partner who had not heard of the end yet."""
    end_conversation(shop.table, shop.d1, error=9, key="e", clock=shop.clock)
    send_on(shop.orders, shop.at_orders, [("order", b"late")], key="s", clock=shop.clock)
    enable(shop.table, shop.clock)
    transmit(shop.warehouse.store, shop.orders, shop.clock)
    [late] = [row for row in shop.warehouse.rows().values() if row["body"] == b"late"]
    result = shop.recover(lookup_id=late["lookup_id"])
    assert ([message.body for message in result.removed], result.ended, shop.told) == ([b"late"], None, [])
    assert errors(shop.orders) == [(9, "")]


def test_section_11_1_what_the_local_broker_kept_back_enters_before_what_partners_send(shop: Shop) -> None:
    set_timer(shop.table, shop.d2, timedelta(minutes=1), key="t", clock=shop.clock)
    two = [row.conversation_id for row in conversations(shop.table) if row.handle == shop.d2]
    send_on(shop.orders, two[0], [("order", b"held")], key="s", clock=shop.clock)
    transmit(shop.warehouse.store, shop.orders, shop.clock)
    shop.clock.advance(timedelta(minutes=2))
    shop.recover()
    assert waiting(shop.table) == [("order", b"good"), (DIALOG_TIMER, b""), ("order", b"held")]


@BOTH_ORDERS
def test_sb_34_a_conversation_is_ended_and_the_queue_enabled_in_the_order_of_its_settings(shop: Shop, at_point: AtPoint, order: str) -> None:
    shop.ordered(order)
    seen = list[QueueState]()
    at_point.do("pass.act.after_commit", lambda: seen.append(shop.state))
    done = shop.ending().end_and_enable(shop.d1, "key")
    assert seen == [QueueState.DISABLED if order == "end_then_enable" else QueueState.ENABLED]
    assert (done.removed, done.sent, done.arrived, done.waiting, done.states) == (2, 1, 1, 0, ("CD",))
    assert (shop.state, errors(shop.orders)) == (QueueState.ENABLED, [(31, "Torn.")])


def test_what_a_disabled_partner_must_hear_waits_and_is_counted(shop: Shop) -> None:
    disable(shop.orders, shop.clock)
    done, _ = shop.ending().end(shop.d1, "key")
    assert (done.arrived, done.waiting, errors(shop.orders)) == (0, 1, [])


def test_an_end_waits_no_longer_than_it_may_while_a_pass_has_the_group(shop: Shop) -> None:
    enable(shop.table, shop.clock)
    claim = shop.table.claim("pass", lease=timedelta(minutes=1), now=shop.clock.now(), max_messages=10, exclusive=True)
    assert claim is not None
    with pytest.raises(ConversationLockedError):
        shop.ending(wait=timedelta(milliseconds=60)).end(shop.d1, "key")
    shop.table.release(claim)
    with pytest.raises(ConversationNotFoundError, match="8426"):
        shop.ending().end("nobody", "key")
    assert shop.told == []


# What people have decided -----------------------------------------------------------------------------------------------


def decided(shop: Shop, decision: str = "end", run: str = "run", **more: object) -> DecideResult:
    halt = halted_endpoint(shop.table)
    assert halt is not None
    given = {"on_ended": shop.told.append} | more
    return decide(shop.table, shop.warehouse.store, shop.clock, decision, halt, run=run, **given)  # type: ignore[arg-type]  # the verb's own


def test_a_conversation_of_the_queue_may_be_ended_and_other_messages_may_not(shop: Shop) -> None:
    halt = halted_endpoint(shop.table)
    assert halt is not None
    message, _ = suspect(shop.table, shop.clock, halt)
    conversation = suspect_conversation(shop.table, message)
    assert conversation is not None
    assert (conversation.handle, conversation.far_service, conversation.waiting) == (shop.d1, "Orders", {"order": 2})
    assert choices(halt, message, conversation)[0] is Decision.END
    assert Decision.END not in choices(halt, message)
    end_conversation(shop.table, shop.d1, key="e", clock=shop.clock)
    assert suspect_conversation(shop.table, message) is None


@BOTH_ORDERS
def test_what_people_have_decided_ends_the_conversation_in_the_order_of_the_settings(shop: Shop, at_point: AtPoint, order: str) -> None:
    shop.ordered(order)
    seen = list[QueueState]()
    at_point.do("pass.act.after_commit", lambda: seen.append(shop.state))
    result = decided(shop, end=EndConversation(31, "Torn."))
    assert seen == [QueueState.DISABLED if order == "end_then_enable" else QueueState.ENABLED]
    assert (result.decision, result.messages, result.to, result.repeated) == ("end", 2, "", False)
    assert result.ended == shop.told[0]
    assert (shop.state, waiting(shop.table)) == (QueueState.ENABLED, [("order", b"good")])
    assert errors(shop.orders) == [(31, "Torn.")]


@BOTH_ORDERS
@pytest.mark.parametrize("point", ["pass.decide.before_step", "pass.act.after_commit", "pass.ending.before_telling", "pass.decide.before_relay"])
def test_a_decision_that_was_killed_is_finished_and_does_nothing_twice(shop: Shop, at_point: AtPoint, point: str, order: str) -> None:
    def die() -> None:
        raise Died

    shop.ordered(order)
    halt = halted_endpoint(shop.table)
    assert halt is not None
    at_point.do(point, die)
    with pytest.raises(Died):
        decided(shop)
    decide(shop.table, shop.warehouse.store, shop.clock, "end", halt, run="run", on_ended=shop.told.append)
    assert (shop.state, errors(shop.orders)) == (QueueState.ENABLED, [(127, "Unable to process message.")])
    assert {told.conversation for told in shop.told} == {shop.d1}
    assert [event.type.value for event in shop.table.events()].count("QUEUE_ENABLED") == 1


def test_a_suspect_whose_conversation_somebody_else_has_ended_leaves_the_queue_to_be_enabled(shop: Shop) -> None:
    halt = halted_endpoint(shop.table)
    assert halt is not None
    end_conversation(shop.table, shop.d1, error=9, key="by hand", clock=shop.clock)
    result = decided(shop)
    assert (result.messages, result.ended, shop.told, shop.state) == (0, None, [], QueueState.ENABLED)
    assert errors(shop.orders) == [(9, "")]
    with pytest.raises(DecisionOutdatedError):
        decide(shop.table, shop.warehouse.store, shop.clock, "end", halt, run="another")


def test_a_recovery_after_somebody_has_ended_the_conversation_enables_the_queue(shop: Shop) -> None:
    end_conversation(shop.table, shop.d1, error=9, key="by hand", clock=shop.clock)
    result = shop.recover()
    assert (result.removed, result.ended, shop.told, shop.state) == ((), None, [], QueueState.ENABLED)


def test_a_conversation_is_not_ended_when_the_queue_was_enabled_meanwhile(shop: Shop, at_point: AtPoint) -> None:
    at_point.do("pass.decide.before_step", lambda: enable(shop.table, shop.clock))
    with pytest.raises(DecisionOutdatedError):
        decided(shop)
    assert (len(waiting(shop.table)), shop.told) == (3, [])


def test_nothing_is_ended_where_no_message_is_to_blame_or_it_has_no_conversation(shop: Shop) -> None:
    enable(shop.table, shop.clock)
    disable(shop.table, shop.clock)
    with pytest.raises(SettingError, match="no single message"):
        decided(shop)
    plain = shop.warehouse.having(table=declare(shop.warehouse.store, "plain", ServiceBroker(), shop.clock)).sent("bad")
    plain.receive()
    halt = halted_endpoint(plain.table)
    assert halt is not None
    with pytest.raises(SettingError, match="of no open conversation"):
        decide(plain.table, plain.store, plain.clock, "end", halt, run="run")
    assert plain.table.snapshot().control.state is QueueState.DISABLED


def test_section_11_1_a_decision_lets_in_first_what_the_local_broker_kept_back(shop: Shop) -> None:
    set_timer(shop.table, shop.d2, timedelta(minutes=1), key="t", clock=shop.clock)
    shop.clock.advance(timedelta(minutes=2))
    decided(shop)
    assert waiting(shop.table) == [("order", b"good"), (DIALOG_TIMER, b"")]


def test_sb_32_the_alert_and_the_failed_task_advise_to_end_the_conversation_of_the_partner(shop: Shop) -> None:
    [alert] = send_alerts(shop.table, "people", {"notes": lambda _alert: None}, shop.clock)
    call = f"QueueHook().queue('warehouse').end_conversation('{shop.d1}', error=127, description='Unable to process message.', key='poison')"
    shell = f"airflow poison end-conversation warehouse {shop.d1} --error 127 --description 'Unable to process message.'"
    assert call in alert.what_to_do
    assert shell in alert.what_to_do
    assert "service 'Orders' would wait for its answer for good" in alert.what_to_do
    assert "QueueHook().remove(" not in alert.what_to_do
    again = shop.warehouse.sent()  # the pass that disabled it: its error is the failed task's
    enable(shop.table, shop.clock)
    failed = again.receive("again")
    assert call in halted(failed, "ServiceBroker")
    assert "remove(" not in halted(failed, "ServiceBroker")


def test_a_strict_inspection_that_disables_the_queue_names_the_conversation_too(shop: Shop) -> None:
    enable(shop.table, shop.clock)
    for _ in range(5):
        inspect(shop.table, shop.clock, mode="strict")
    alerts = send_alerts(shop.table, "people", {"notes": lambda _alert: None}, shop.clock)
    assert [f"'{shop.d1}', error=127" in alert.what_to_do for alert in alerts] == [True, True]


def test_sb_32_a_removal_says_which_service_waits_for_an_answer(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    bad, later, _ = sorted(shop.warehouse.rows())
    result = remove_messages(shop.table, shop.clock, [bad])
    assert result.to_dict()["awaited"] == {shop.d1: "Orders"}
    remove(shop.table, later, shop.clock)
    assert f"Service 'Orders' waits for an answer in conversation {shop.d1}: end it with QueueHook().queue('warehouse').end" in caplog.text
    shop.warehouse.sent("plain")
    assert remove_messages(shop.table, shop.clock, [max(shop.warehouse.rows())]).awaited == {}


def test_nobody_waits_for_an_answer_who_has_ended_the_conversation(shop: Shop) -> None:
    end_conversation(shop.orders, shop.at_orders, key="e", clock=shop.clock)
    enable(shop.table, shop.clock)
    transmit(shop.warehouse.store, shop.orders, shop.clock)
    assert remove_messages(shop.table, shop.clock, [min(shop.warehouse.rows())]).awaited == {}
