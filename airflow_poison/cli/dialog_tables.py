"""What commands print of services and conversations for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from airflow_poison.cli import humanly
from airflow_poison.cli.screen import cuttable, line, one_line, screen, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_poison.core.conversations.services import Contract, MessageType, Service
    from airflow_poison.core.passes.conversations import ConversationRow
    from airflow_poison.core.passes.dialogs import ActResult

_STATES = {
    "SO": "started outbound",
    "SI": "started inbound",
    "CO": "conversing",
    "DI": "disconnected inbound: the partner has ended it",
    "DO": "disconnected outbound: this side has ended it",
    "ER": "error",
    "CD": "closed",
}


def print_services(found: Sequence[tuple[str, Service]]) -> None:
    """Print a row for each contract of each service."""
    out, rows = screen(), table("service", "queue", "contract", "message types", cut="message types")
    for queue, service in found:
        for number, contract in enumerate(service.contracts.values()):
            names = (one_line(service.name), one_line(queue)) if not number else ("", "")
            rows.add_row(Text(names[0], "bold"), names[1], one_line(contract.name), cuttable(_types(contract)))
    out.print(rows)


def _types(contract: Contract) -> str:
    return ", ".join(f"{name} ({who}, {_validation(contract.message_types[name])})" for name, who in contract.senders.items())


def _validation(message_type: MessageType) -> str:
    return f"{message_type.validation}{'' if message_type.schema is None else ' with a JSON Schema'}"


def print_conversations(rows: Sequence[ConversationRow], now: datetime) -> None:
    """Print a row for each conversation endpoint."""
    out, told = (
        screen(),
        table("conversation", "state", "service", "partner", "waiting", "timer", "lifetime", "error", right=["waiting"], cut="error"),
    )
    for row in rows:
        told.add_row(
            row.handle,
            row.state,
            one_line(row.service),
            one_line(row.far_service),
            f"{sum(row.waiting.values()):,}",
            humanly.due(row.dialog_timer, now),
            humanly.due(row.lifetime, now),
            cuttable("" if row.error is None else f"{row.error[0]} {row.error[1]}"),
        )
    out.print(told)


def print_conversation(row: ConversationRow, now: datetime) -> None:
    """Print everything about a conversation endpoint."""
    out = screen()
    line(out, (f"conversation {row.handle}", "bold"), f": {row.state}, {_STATES[row.state]}")
    for name, value in _facts(row, now):
        line(out, (f"{name}: ", "dim"), one_line(value), indent=2)


def _facts(row: ConversationRow, now: datetime) -> Iterator[tuple[str, str]]:
    yield "of both sides", row.conversation_id
    yield "side", f"{'initiator' if row.is_initiator else 'target'}, service {row.service}"
    yield "partner", row.far_service
    yield "contract", row.contract
    yield "group", row.group_id
    yield "priority", str(row.priority)
    yield "sent", f"{row.sent:,}"
    waiting = ", ".join(f"{count:,} of type {kind}" for kind, count in row.waiting.items())
    yield "waiting", waiting or "nothing"
    for name, at in (("timer", row.dialog_timer), ("lifetime", row.lifetime)):
        if at is not None:
            yield name, f"{humanly.instant(at)} ({humanly.due(at, now)})"
    if row.error is not None:
        yield "error", f"{row.error[0]} {row.error[1]}"
    if row.failures:
        yield "failures", str(row.failures)


def print_waiting(done: ActResult) -> None:
    """Say what stays at this side."""
    if done.waiting:
        line(screen(), f"Waits at this side until a disabled queue is enabled: {humanly.messages(done.waiting)}.")
