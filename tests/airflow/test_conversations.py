"""Conversations in DAGs: dialogs are begun, sent on, received and ended; a poison message goes with its conversation. Without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, BaseNotifier, task

from airflow_poison import Message, Msmq4, ServiceBroker
from airflow_poison.dialogs.acts import Dialog
from airflow_poison.dialogs.as_rows import MESSAGE_COLUMNS, table_to_messages
from airflow_poison.dialogs.services import Contract, MessageType, Service
from airflow_poison.dialogs.system_messages import ERROR, ErrorDocument
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.ask import QueueAskOperator
from airflow_poison.operators.base import number
from airflow_poison.operators.dialogs import (
    QueueBeginDialogOperator,
    QueueEndConversationOperator,
    QueueSendOnConversationOperator,
    dialogs,
    messages,
    span,
)
from airflow_poison.operators.manage import QueueInspectOperator, QueueRecoverOperator
from airflow_poison.operators.receive import QueueReceiveOperator, QueueToReceive
from airflow_poison.passes.alter import disable
from airflow_poison.passes.conversations import conversations
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.store.control import QueueState
from airflow_poison.taskgroups import recovery
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import (
    ConversationNotFoundError,
    ConversationSendError,
    InputError,
    ServiceNotFoundError,
    SettingError,
)

from .test_recovery import Airflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store import QueueStore
    from airflow_poison.store.queue_table import QueueTable

    from .conftest import Ran

CLOCK = SystemClock()
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = [MessageType("order", "X"), MessageType("photo", "N"), MessageType("nudge", "E")]
PARTS = Contract("parts", {"order": "INITIATOR", "photo": "INITIATOR", "nudge": "INITIATOR", "shipped": "TARGET"}, KINDS)
ORDERS, WAREHOUSE = Service("Orders", [PARTS]), Service("Warehouse", [PARTS])
BAD = "<bad/>"
TOLD: list[dict[str, Any]] = []


def refuse_bad(message: Message) -> None:
    if message.text == BAD:
        raise ValueError("no such part")


@pytest.fixture(autouse=True)
def nobody_told() -> None:
    TOLD.clear()


@pytest.fixture
def hook(store: QueueStore) -> QueueHook:
    """The default connection, with a queue of each service."""
    hook = QueueHook()
    hook.queue("orders", ServiceBroker(), [ORDERS])
    hook.queue("warehouse", ServiceBroker(), [WAREHOUSE])
    return hook


def begun(hook: QueueHook, *given: Any, key: str = "k") -> list[str]:
    """Begin dialogs of one message each; return their handles at the target."""
    sent = [Dialog(messages=[message]) for message in given]
    done = hook.queue("orders").begin_dialogs(service="Orders", far_service="Warehouse", contract="parts", dialogs=sent, key=key)
    far = {row.conversation_id: row.handle for row in hook.queue("warehouse").conversations()}
    return [far[handle] for handle in done.conversations]


def poisoned(hook: QueueHook, **policy: Any) -> str:
    """Let a message of a dialog disable the queue of its target; return the handle there."""
    rules = ServiceBroker(**policy)
    table = hook.queue("warehouse", rules).table
    [handle] = begun(hook, ("order", BAD.encode()))
    ReceivePass(table=table, policy=rules, handler=refuse_bad, engine=LocalEngine, clock=CLOCK, isolation="none", store=hook.store()).run("run")
    assert table.snapshot().control.state is QueueState.DISABLED
    return handle


def waiting(table: QueueTable) -> list[tuple[str, bytes]]:
    files = sorted((file for file in table.snapshot().files if file.sub_queue == "main"), key=lambda file: file.min_lookup_id)
    found = [message for file in files for message in table_to_messages(table.read(file, list(MESSAGE_COLUMNS)))]
    return [(message.message_type, message.body) for message in found if message is not None]


def errors(table: QueueTable) -> list[tuple[int, str]]:
    documents = [ErrorDocument.from_xml(body) for kind, body in waiting(table) if kind == ERROR]
    return [(document.code, document.description) for document in documents]


def told(context: Any) -> None:
    TOLD.append(context["conversation_ended"])


class Keeper(BaseNotifier):
    """Removes what it keeps for a conversation."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        TOLD.append({"text": self.text, **context["conversation_ended"]})


# Dialogs ----------------------------------------------------------------------------------------------------------------


def test_a_dialog_is_begun_sent_on_and_ended_each_once_however_often_its_tasks_run(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    QueueHook().queue("warehouse", ServiceBroker(), [WAREHOUSE])
    with DAG("dialog", schedule=None, start_date=WHEN) as dag:
        begin = QueueBeginDialogOperator(
            task_id="begin",
            queue_name="{{ 'orders' }}",
            service="Orders",
            far_service="{{ 'Warehouse' }}",
            contract="parts",
            messages=[("order", "<bolt run='{{ run_id }}'/>"), {"message_type": "photo", "body": {"of": "{{ dag.dag_id }}"}}],
            lifetime="{{ 2 }}h",
            priority="{{ 7 }}",
            services=[ORDERS],
            policy=ServiceBroker(),
        )
        handle = "{{ ti.xcom_pull(task_ids='begin')['conversations'][0] }}"
        send = QueueSendOnConversationOperator(task_id="send", queue_name="orders", conversation=handle, messages=[("nudge", None)])
        end = QueueEndConversationOperator(
            task_id="end", queue_name="orders", conversation=handle, error="{{ 9 }}", description="{{ dag.dag_id }}", on_conversation_ended=told
        )
        begin >> send >> end
    ran = run_dag(dag, WHEN)
    assert ran.state == "success", ran.errors
    began = ran.returned["begin"]
    [handle] = began["conversations"]
    assert began == {
        "queue": "orders",
        "conversations": [handle],
        "sent": 2,
        "removed": 0,
        "repeated": False,
        "states": ["CO"],
        "arrived": 2,
        "waiting": 0,
    }
    assert (ran.returned["send"]["sent"], ran.returned["send"]["arrived"]) == (1, 1)
    assert (ran.returned["end"]["states"], ran.returned["end"]["arrived"]) == (["CD"], 1)
    warehouse = store.open("warehouse")
    kinds = [kind for kind, _ in waiting(warehouse)]
    assert (kinds, errors(warehouse)) == (["order", "photo", "nudge", ERROR], [(9, "dialog")])
    assert waiting(warehouse)[1][1] == b'{"of": "dialog"}'
    [row] = conversations(warehouse)
    assert (row.priority, row.state, row.conversation_id) == (7, "ER", handle)
    assert row.lifetime is not None

    again = run_dag(dag, WHEN)
    assert again.state == "success", again.errors
    assert again.returned["begin"]["conversations"] == [handle]
    assert [again.returned[name]["repeated"] for name in ("begin", "send", "end")] == [True, True, True]
    assert [kind for kind, _ in waiting(warehouse)] == kinds
    assert [each["error"] for each in TOLD] == [9, 9]  # at least once


def test_several_dialogs_are_begun_together_and_take_what_they_do_not_say_from_the_task(hook: QueueHook) -> None:
    given = [{"messages": [("order", "<a/>")], "priority": 2, "timer": 60}, {"messages": [["order", "<b/>"]]}]
    operator = QueueBeginDialogOperator(
        task_id="begin", queue_name="orders", service="Orders", far_service="Warehouse", contract="parts", dialogs=given, priority=9
    )
    result = operator.execute(_context())
    assert (result["sent"], result["arrived"]) == (2, 2)
    rows = {row.handle: row for row in hook.queue("orders").conversations()}
    first, second = (rows[handle] for handle in result["conversations"])  # type: ignore[attr-defined]  # a list
    assert (first.priority, second.priority) == (2, 9)
    assert (first.dialog_timer is not None, second.dialog_timer) == (True, None)


def test_sb_19_what_a_disabled_partner_does_not_take_waits_and_follows_when_it_is_enabled(hook: QueueHook) -> None:
    disable(hook.queue("warehouse").table, CLOCK)
    done = hook.queue("orders").begin_dialogs(
        service="Orders", far_service="Warehouse", contract="parts", dialogs=[Dialog(messages=[("order", b"<a/>")])], key="k"
    )
    assert (done.sent, done.arrived, done.waiting) == (1, 0, 1)
    hook.queue("warehouse").enable()
    assert waiting(hook.queue("warehouse").table) == [("order", b"<a/>")]


def test_nothing_is_begun_when_something_is_wrong_with_it(hook: QueueHook) -> None:
    def begin(**changes: Any) -> object:
        plain: dict[str, Any] = {
            "queue_name": "orders",
            "service": "Orders",
            "far_service": "Warehouse",
            "contract": "parts",
            "messages": [("order", "<a/>")],
        }
        return QueueBeginDialogOperator(task_id="begin", **plain | changes).execute(_context())

    with pytest.raises(InputError, match="either messages"):
        begin(dialogs=[])
    with pytest.raises(InputError, match=r"expected \(message type, body\)"):
        begin(messages=["<a/>"])
    with pytest.raises(InputError, match="messages must be there"):
        begin(messages=None, dialogs=[{"timer": 1}])
    with pytest.raises(SettingError, match="lifetime"):
        begin(lifetime="soon")
    with pytest.raises(SettingError, match="priority"):
        begin(priority="high")
    with pytest.raises(SettingError, match="shipped"):
        begin(messages=[("shipped", "")])
    with pytest.raises(ServiceNotFoundError, match="Nobody"):
        begin(service="Nobody")
    assert hook.queue("orders").conversations() == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [([("a", "ü")], [("a", "ü".encode())]), ([["a", None]], [("a", b"")]), ([{"message_type": "a", "body": [1]}], [("a", b"[1]")])],
)
def test_messages_are_pairs_or_dicts(given: Any, expected: Any) -> None:
    assert messages(given) == expected


def test_durations_and_numbers_may_be_text() -> None:
    assert (span("wait", "1m30s"), span("wait", 5), span("wait", " "), span("wait", None)) == (
        timedelta(seconds=90),
        timedelta(seconds=5),
        None,
        None,
    )
    assert (number("error", " 12"), number("error", ""), number("error", 3)) == (12, None, 3)
    whole = Dialog(messages=[("a", b"")])
    assert dialogs([whole]) == [whole]


def test_sb_43_a_send_after_the_partners_error_fails(hook: QueueHook) -> None:
    [far] = begun(hook, ("order", b"<a/>"))
    [near] = hook.queue("orders").conversations()
    hook.queue("warehouse").end_conversation(far, error=5, key="e")
    send = QueueSendOnConversationOperator(task_id="send", queue_name="orders", conversation=near.handle, messages=[("nudge", "")])
    with pytest.raises(ConversationSendError, match="8429"):
        send.execute(_context())


def test_a_timer_is_set_and_a_service_dropped(hook: QueueHook) -> None:
    [far] = begun(hook, ("order", b"<a/>"))
    done = hook.queue("warehouse").set_timer(far, timedelta(minutes=5), key="t")
    assert (done.sent, hook.queue("warehouse").conversations(conversation=far)[0].dialog_timer is not None) == (0, True)
    hook.queue("orders").drop_service("Orders")
    assert hook.queue("orders").table.snapshot().control.services == {}
    with pytest.raises(ConversationNotFoundError, match="8426"):
        hook.queue("warehouse").send_on("nobody", [("shipped", b"")], key="s")


# Recovery ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["end_then_enable", "enable_then_end"])
def test_sb_26_to_34_a_task_ends_the_conversation_of_a_poison_message_and_enables_the_queue(
    hook: QueueHook, run_dag: Callable[..., Ran], order: str
) -> None:
    handle = poisoned(hook, recovery_order=order)
    with DAG(f"end_{order}", schedule=None) as dag:
        QueueEndConversationOperator(
            task_id="end",
            queue_name="warehouse",
            conversation="{{ '" + handle + "' }}",
            error=127,
            description="Unable to process message.",
            enable=True,
            wait="5s",
            on_conversation_ended=[told, Keeper("{{ conversation_ended.conversation }}")],
        )
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    assert (ran.returned["end"]["removed"], ran.returned["end"]["arrived"]) == (1, 1)
    table = hook.queue("warehouse").table
    assert (table.snapshot().control.state, waiting(table)) == (QueueState.ENABLED, [])
    assert errors(hook.queue("orders").table) == [(127, "Unable to process message.")]
    one, two = TOLD
    assert (one["conversation"], one["service"], one["far_service"], one["error"]) == (handle, "Warehouse", "Orders", 127)
    assert two == {"text": handle, **one}


def test_without_enable_the_queue_stays_as_it_is_and_cleanup_tells_nobody(hook: QueueHook) -> None:
    handle = poisoned(hook)
    end = QueueEndConversationOperator(task_id="end", queue_name="warehouse", conversation=handle, cleanup=True, on_conversation_ended=told)
    end.execute(_context())
    table = hook.queue("warehouse").table
    assert (table.snapshot().control.state, waiting(table), waiting(hook.queue("orders").table)) == (QueueState.DISABLED, [], [])
    assert [(each["error"], each["cleanup"]) for each in TOLD] == [(None, True)]


def test_a_receiver_that_fails_fails_the_task_and_is_told_again_by_its_retry(hook: QueueHook) -> None:
    handle, tries = poisoned(hook), list[Any]()

    def fails_once(context: Any) -> None:
        tries.append(context["conversation_ended"]["conversation"])
        if len(tries) == 1:
            raise RuntimeError("no database")

    end = QueueEndConversationOperator(
        task_id="end", queue_name="warehouse", conversation=handle, error=127, enable=True, on_conversation_ended=fails_once
    )
    with pytest.raises(RuntimeError, match="no database"):
        end.execute(_context())
    assert (hook.queue("warehouse").table.snapshot().control.state, errors(hook.queue("orders").table)) == (QueueState.DISABLED, [(127, "")])
    assert end.execute(_context())["repeated"]
    assert (hook.queue("warehouse").table.snapshot().control.state, tries) == (QueueState.ENABLED, [handle, handle])
    assert errors(hook.queue("orders").table) == [(127, "")]


def test_the_hooks_recovery_ends_the_conversation_and_tells_its_keeper(hook: QueueHook) -> None:
    handle, ended = poisoned(hook), list[Any]()
    result = hook.queue("warehouse").recover(on_conversation_ended=ended.append)
    assert [each.conversation for each in ended] == [handle]
    assert result.ended == ended[0]
    assert errors(hook.queue("orders").table) == [(127, "Unable to process message.")]


# Inspection and receiving -----------------------------------------------------------------------------------------------


def test_sb_27_an_inspection_prints_by_the_validation_of_the_message_type(hook: QueueHook, capsys: pytest.CaptureFixture[str]) -> None:
    xml, photo, nudge = begun(hook, ("order", b"<a/>"), ("photo", b"\x01\xff"), ("nudge", b""))

    def look(conversation: str) -> str:
        QueueInspectOperator(task_id="look", queue_name="warehouse", conversation_id=conversation, mode="browse").execute(_context())
        return capsys.readouterr().out

    assert "<a/>" in look(xml)
    assert "No validation -- binary message:\n0x01FF" in look(photo)
    assert "Empty message." in look(nudge)
    assert "No message available." in look("nobody")


def test_a_receiving_task_declares_its_services_first(store: QueueStore, run_dag: Callable[..., Ran]) -> None:
    with DAG("receives", schedule=None) as dag:
        one = QueueReceiveOperator(task_id="one", queue_name="warehouse", policy=ServiceBroker(), handler=refuse_bad, services=[WAREHOUSE])

        @task.receive(queue_name="orders", policy=ServiceBroker(), services=[ORDERS])
        def two(message: Message) -> None:
            """Settle a message."""

        many = QueueReceiveOperator(
            task_id="many",
            handler=refuse_bad,
            policy=ServiceBroker(),
            queues=[QueueToReceive(queue_name="bills", services=[Service("Bills", [PARTS])]), {"queue_name": "notes"}],
        )
        one >> two() >> many  # type: ignore[call-arg]  # a decorated function is called without its message
    ran = run_dag(dag)
    assert ran.state == "success", ran.errors
    found = {name: sorted(store.open(name).snapshot().control.services) for name in store.names()}
    assert found == {"warehouse": ["Warehouse"], "orders": ["Orders"], "bills": ["Bills"], "notes": []}


def test_services_stand_where_they_have_one_queue_with_service_brokers_rules(store: QueueStore) -> None:
    with pytest.raises(SettingError, match="QueueToReceive"):
        QueueReceiveOperator(task_id="many", queues=["a", "b"], handler=refuse_bad, services=[WAREHOUSE])
    with pytest.raises(SettingError, match="Service Broker"):
        QueueHook().queue("plain", Msmq4(), [WAREHOUSE])
    with pytest.raises(SettingError, match="services"):
        QueueReceiveOperator(task_id="one", queues=[{"queue_name": "a", "services": ["Warehouse"]}], handler=refuse_bad)


def _context(run_id: str = "monday") -> Any:
    from types import SimpleNamespace

    ti = SimpleNamespace(id="an id", dag_id="shop", run_id=run_id, task_id="task", map_index=-1)
    return {"ti": ti, "task_instance": ti}


# People decide ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


def test_people_are_shown_the_conversation_and_may_end_it_with_the_error_of_the_group(hook: QueueHook, airflow: Airflow) -> None:
    handle = poisoned(hook)
    ask = QueueAskOperator(task_id="ask", queue_name="warehouse", error="31", description="Torn.")
    kwargs = airflow.park(ask)
    asked = airflow.question
    assert asked["options"][0] == "End the conversation of message 1 with error 31 and enable"
    assert "| conversation's state | ` SI ` |" in asked["body"]
    assert "| partner | ` Orders `, of ` Warehouse ` here |" in asked["body"]
    assert "| waiting in the conversation | 1 of type ` order ` |" in asked["body"]
    assert "` Orders ` gets error 31, ` Torn. `" in asked["body"]

    decision = airflow.answer(ask, kwargs, asked["options"][0])
    recovers = QueueRecoverOperator(
        task_id="recover", queue_name="warehouse", decision=decision, error=31, description="Torn.", on_conversation_ended=told
    )
    result = recovers.execute(_context())
    assert (result["decision"], result["messages"], result["ended"]) == ("end", 1, TOLD[0])
    assert (TOLD[0]["conversation"], TOLD[0]["error"]) == (handle, 31)
    assert hook.queue("warehouse").table.snapshot().control.state is QueueState.ENABLED
    assert errors(hook.queue("orders").table) == [(31, "Torn.")]


def test_nobody_answering_ends_the_conversation_where_it_goes_on(hook: QueueHook, airflow: Airflow) -> None:
    poisoned(hook)
    airflow.park(QueueAskOperator(task_id="ask", queue_name="warehouse", on_timeout="end"))
    assert airflow.question["defaults"] == ["End the conversation of message 1 with error 127 and enable"]


def test_nobody_answering_leaves_the_queue_whose_conversation_has_ended(hook: QueueHook, airflow: Airflow) -> None:
    hook.queue("warehouse").end_conversation(poisoned(hook), key="by hand")
    airflow.park(QueueAskOperator(task_id="ask", queue_name="warehouse", on_timeout="end"))
    assert airflow.question["defaults"] == ["Leave it disabled"]


def test_the_group_gives_code_and_text_to_both_of_its_tasks(store: QueueStore) -> None:
    with DAG("group", schedule=None) as dag:
        recovery("warehouse", error=31, description="Torn.", on_conversation_ended=told, on_timeout="end")
    ask, recovers = (dag.get_task(f"recovery.{name}") for name in ("ask", "recover"))
    for operator in (ask, recovers):
        assert isinstance(operator, QueueAskOperator | QueueRecoverOperator)
        assert (operator.error, operator.description) == (31, "Torn.")
    assert isinstance(recovers, QueueRecoverOperator)
    assert recovers.on_conversation_ended == (told,)


def test_a_code_that_is_none_ends_nothing(hook: QueueHook, airflow: Airflow) -> None:
    poisoned(hook)
    with pytest.raises(SettingError, match="error"):
        QueueAskOperator(task_id="ask", queue_name="warehouse", error=0).execute(_context())
