"""``airflow poison services``, ``event-notifications``, ``conversations``, ``begin-dialog``, ``send-on`` and ``set-timer``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    CONVERSATION,
    QUEUE,
    QUEUES,
    REASON,
    WAIT,
    WHERE,
    Argument,
    command,
    end_with,
    end_with_no,
    looked_for,
    option,
    queue_of,
    say,
    store_of,
    switch,
    wrong_usage,
)
from airflow_poison.cli.terminal import messages, report, write_json

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.dialogs.services import Contract, SentBy, Service
    from airflow_poison.passes.dialogs import ActResult
    from airflow_poison.queue import Queue


_BODIES = Argument(("bodies",), {"metavar": "BODY", "nargs": "+", "help": "messages, one argument each"})
_KEY = option("--send-key", "KEY", "names what is done: later the same key does nothing again")
_TYPE = option("--message-type", "TYPE", "type of every message (default: the only one that the contract lets this side send)")


@command("services", QUEUES, *WHERE)
def services(args: Namespace) -> None:
    """List services with their queues and contracts.

    List the services of a store: their queues, contracts and message types. Exit code 0: listed, 1: there is no service, 2: it could not be listed.
    """
    from airflow_poison.cli import tables
    from airflow_poison.passes.conversations import services_of

    def look(queue: Queue) -> list[tuple[str, Service]]:
        return [(queue.name, service) for service in services_of(queue.reading.snapshot().control).values()]

    store = store_of(args)
    found, failed = looked_for(store, args.queue, look)
    if args.output == "json":
        rows = [{"queue": queue, **service.to_dict()} for queue, service in found]
        write_json({"store": store.tables.uri, "services": rows, "errors": failed})
    elif found:
        tables.print_services(found)
    nothing = f"no queue of {store.tables.uri} has a service. Whatever receives declares them: services=[...] in a DAG, receive --services here."
    end_with(args.output, failed, found=bool(found), nothing=nothing)


@command(
    "event-notifications",
    QUEUE,
    option("--create", "NAME", "send --service a message whenever the queue is disabled"),
    option("--service", "SERVICE", "with --create: a service with the contract EVENT_NOTIFICATION", completes="services"),
    option("--drop", "NAME", "end this notification"),
    REASON,
    *WHERE,
)
def event_notifications(args: Namespace) -> None:
    """List, create or drop a queue's event notifications.

    List the services that get a message whenever a queue is disabled, or change them. Exit code 0: done, 1: the queue has none, 2: nothing was
    changed.
    """
    if (args.create is None) != (args.service is None) or None not in (args.create, args.drop):
        raise wrong_usage("event-notifications: expected --create NAME --service SERVICE, or --drop NAME, or neither.")
    changes = args.create is not None or args.drop is not None
    queue = queue_of(args)
    if args.create is not None:
        queue.create_event_notification(args.create, args.service)
    if args.drop is not None:
        queue.drop_event_notification(args.drop)
    found = queue.event_notifications()
    report(
        args.output,
        {"queue": queue.name, "event_notifications": found},
        *(
            f"Event notification {name!r}: service {service} gets a message whenever queue {queue.name!r} is disabled."
            for name, service in found.items()
        ),
    )
    if not found and not changes:
        end_with_no(args.output, f"queue {queue.name!r} has no event notification; --create NAME --service SERVICE makes one.")


@command(
    "conversations",
    QUEUE,
    option("--conversation", "HANDLE", "this one, whole", completes="handles"),
    switch("--ended", "also those that are remembered only because they have ended"),
    *WHERE,
)
def conversations(args: Namespace) -> None:
    """List a queue's conversations, or show one.

    List the conversation endpoints of a queue: state, partner, timers and what waits. Exit code 0: listed, 1: there is none, 2: it could not be
    listed.
    """
    from airflow_poison.cli import tables

    queue = queue_of(args)
    now, found = queue.clock.now(), queue.conversations(conversation=args.conversation, ended=args.ended)
    if args.output == "json":
        write_json({"queue": queue.name, "conversations": [row.to_dict() for row in found]})
    elif args.conversation is not None:
        tables.print_conversation(found[0], now)
    elif found:
        tables.print_conversations(found, now)
    if not found:
        end_with_no(
            args.output, f"queue {queue.name!r} has no conversation{'' if args.ended else ' that goes on; --ended shows those that have ended'}."
        )


@command(
    "begin-dialog",
    QUEUE,
    _BODIES,
    Argument(("--service",), {"metavar": "SERVICE", "required": True, "help": "the service of this queue that begins it"}, "services"),
    Argument(("--far-service",), {"metavar": "SERVICE", "required": True, "help": "the partner"}, "services"),
    option("--contract", "CONTRACT", "one of the service's (default: its only one)"),
    _TYPE,
    option("--priority", "N", "of the dialog, 1 to 10 (default: 5)"),
    option("--lifetime", "DURATION", "how long the dialog may last at most (default: for ever)"),
    option("--timer", "DURATION", "a conversation timer of this side, set at once"),
    option("--group", "GROUP", "conversation group of a related conversation (default: a group of its own)"),
    _KEY,
    *WHERE,
)
def begin_dialog(args: Namespace) -> None:
    """Begin a dialog with another service.

    Begin a dialog and send its first messages, in one commit. Exit code 0: begun, or begun before with this key, 2: nothing was begun.
    """
    from airflow_poison.dialogs.acts import HIGHEST_PRIORITY, LOWEST_PRIORITY, Dialog
    from airflow_poison.dialogs.services import SentBy
    from airflow_poison.passes.conversations import service_in

    queue = queue_of(args)
    contract = _contract(service_in(queue.table, args.service), args.contract)
    dialog = Dialog(
        messages=_messages(contract, SentBy.INITIATOR, args),
        group_id=args.group,
        lifetime=None if args.lifetime is None else values.lasting("--lifetime", args.lifetime),
        timer=None if args.timer is None else values.lasting("--timer", args.timer),
        **({} if args.priority is None else {"priority": values.whole("--priority", args.priority, LOWEST_PRIORITY, HIGHEST_PRIORITY)}),
    )
    key = _key(args, queue)
    done = queue.begin_dialogs(service=args.service, far_service=args.far_service, contract=contract.name, dialogs=[dialog], key=key)
    _warn_of_misfits(done, contract, dialog.messages)
    [handle] = done.conversations
    again = f"An earlier call with this key has begun dialog {handle} with {args.far_service}; nothing was sent now."
    _report(args, queue, done, again if done.repeated else f"Began dialog {handle} with {args.far_service}; sent {messages(done.sent)}.")


@command("send-on", QUEUE, CONVERSATION, _BODIES, _TYPE, WAIT, _KEY, *WHERE)
def send_on(args: Namespace) -> None:
    """Send further messages on a conversation.

    Send on a conversation, in one commit. Exit code 0: sent, or sent before with this key, 1: there is no such conversation, 2: nothing was sent.
    """
    from airflow_poison.dialogs.services import SentBy
    from airflow_poison.passes.conversations import service_in

    queue = queue_of(args)
    [row] = queue.conversations(conversation=args.conversation)
    side = SentBy.INITIATOR if row.is_initiator else SentBy.TARGET
    contract = _contract(service_in(queue.table, row.service), row.contract)
    sent = _messages(contract, side, args)
    done = queue.send_on(args.conversation, sent, key=_key(args, queue), wait=values.duration("--wait", args.wait))
    _warn_of_misfits(done, contract, sent)
    again = "An earlier call with this key has sent this; nothing was sent now."
    _report(args, queue, done, again if done.repeated else f"Sent {messages(done.sent)} to {row.far_service}.")


@command("set-timer", QUEUE, CONVERSATION, Argument(("timeout",), {"metavar": "DURATION", "help": "when it expires, from now"}), WAIT, *WHERE)
def set_timer(args: Namespace) -> None:
    """Set the timer of a conversation.

    Set the conversation timer of this side, or start it again. Exit code 0: set, 1: there is no such conversation, 2: it could not be set.
    """
    span, queue = values.lasting("DURATION", args.timeout), queue_of(args)
    done = queue.set_timer(args.conversation, span, key=uuid.uuid4().hex, wait=values.duration("--wait", args.wait))
    _report(args, queue, done, f"The timer of conversation {args.conversation} expires in {args.timeout}.")


def _report(args: Namespace, queue: Queue, done: ActResult, text: str) -> None:
    """Say what was done, and of Error messages that are here already."""
    from airflow_poison.cli import tables
    from airflow_poison.dialogs.acts import ConversationState

    for handle in done.conversations if not done.repeated else ():
        if queue.conversations(conversation=handle)[0].state == ConversationState.ERROR:
            shows = f"inspect {queue.name} --conversation {handle} --mode browse"
            say("warning", f"an Error message has arrived on conversation {handle}; '{shows}' shows it.")
    report(args.output, done.to_dict(), text, *tables.waiting(done))


def _warn_of_misfits(done: ActResult, contract: Contract, sent: Sequence[tuple[str, bytes]]) -> None:
    """Say which bodies will be refused where they arrive: what a contract says is looked at there, by the definitions of that side."""
    for number, (kind, body) in enumerate(sent if not done.repeated else (), 1):
        misfit = contract.message_types[kind].check(body)
        if misfit is not None:
            refused = "Where it arrives it is refused, and an Error message comes back."
            say("warning", f"body {number} is none of message type {kind}: {misfit.reason}. {refused}")


def _contract(service: Service, given: str | None) -> Contract:
    """Return the contract of this name, or the only one. Raises InputError."""
    names = ", ".join(sorted(service.contracts))
    if given is None and len(service.contracts) != 1:
        raise wrong_usage(f"--contract is missing: service {service.name} has {names}.")
    found = next(iter(service.contracts.values())) if given is None else service.contracts.get(given)
    if found is None:
        raise wrong_usage(f"--contract {given}: expected one of service {service.name}: {names}.")
    return found


def _messages(contract: Contract, side: SentBy, args: Namespace) -> list[tuple[str, bytes]]:
    """Return the messages, of the type that was given, or of the only one that a side may send. Raises InputError."""
    allowed = sorted(contract.sent_by(side))
    if args.message_type is None and len(allowed) != 1:
        raise wrong_usage(f"--message-type is missing: contract {contract.name} lets this side send {', '.join(allowed) or 'nothing'}.")
    return [(allowed[0] if args.message_type is None else args.message_type, os.fsencode(body)) for body in args.bodies]


def _key(args: Namespace, queue: Queue) -> str:
    from airflow_poison.passes.runs import run_key

    return run_key(queue.table.uri, uuid.uuid4().hex if args.send_key is None else args.send_key)
