"""``airflow poison remove``, ``recover``, ``end-conversation``: messages go for good, once they are printed or saved, and somebody wants it."""

from __future__ import annotations

import base64
import json
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import CONVERSATION, IDS, NO, QUEUE, SAVE, WAIT, WHERE, YES, command, option, say, switch, wrong_usage
from airflow_poison.cli.stores import opened_queue, opened_store, system_clock
from airflow_poison.cli.terminal import line, screen, write_json
from airflow_poison.cli.terminal import messages as counted

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_poison.core.passes.browse import MessageRow
    from airflow_poison.core.passes.conversations import ConversationRow
    from airflow_poison.core.passes.recovery import Ending
    from airflow_poison.core.store.queue_table import QueueTable


@command("remove", QUEUE, IDS, switch("--conversation", "with all messages of the conversations that they belong to"), SAVE, YES, *WHERE)
def remove(args: Namespace) -> None:
    """Take messages out of a queue for good.

    Print messages whole, or save them, then take them out of the queue, all or none. Asks first on a terminal. Exit code 0: removed, 1: not there, or
    not wanted, 2: it could not be done.
    """
    from airflow_poison.core.errors import MessageNotFoundError
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen
    from airflow_poison.core.passes.move import remove_messages

    numbers = values.lookup_ids(args.lookup_ids)
    _check_asking(args)
    table = opened_queue(args)
    found = look_up(table, Chosen.ids(numbers))
    if missing := sorted(set(numbers) - {message.lookup_id for message in found}):
        which = ", ".join(map(str, missing))
        raise MessageNotFoundError(f"Not in queue {table.name!r}: {which}. Settled, moved or removed, or never sent. Nothing was removed.")
    if args.conversation:
        found = _with_conversations(table, found)
    _check_free(table, found)
    _keep(args, table, found)
    _ask(args, f"Remove {counted(len(found))} from {table.name} for good?")
    done = remove_messages(table, system_clock(), [message.lookup_id for message in found])
    if args.output != "json":
        line(screen(), f"Removed {counted(len(done.messages))} from {table.name}.")


@command("recover", QUEUE, option("--lookup-id", "ID", "another message than the one that halted the queue"), SAVE, YES, *WHERE)
def recover(args: Namespace) -> None:
    """Remove the message that halted a queue, and enable the queue.

    Print or save the message that halted the queue, with its conversation; remove it, then enable the queue. Asks first on a terminal. Exit code 0:
    done, 1: no message halted it, or not wanted, 2: it could not be done.
    """
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen
    from airflow_poison.core.passes.recovery import recover as verb

    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    _check_asking(args)
    table = opened_queue(args)
    wanted = table.snapshot().control.halted_by if number is None else number
    found = () if wanted is None else _with_conversations(table, look_up(table, Chosen.ids([wanted])))
    _check_free(table, found)
    if wanted is not None and (found or number is None):
        _keep(args, table, found)
        _ask(args, f"Remove {counted(len(found))} from {table.name} for good, and enable the queue?")
    done = verb(table, system_clock(), lookup_id=number, store=opened_store(args))
    if args.output != "json":
        line(screen(), f"Removed {counted(len(done.removed))} from {table.name}, and enabled it; it was {done.before}.")
        if (ended := done.ended) is not None:
            line(screen(), f"Conversation {ended.conversation} was ended; {ended.far_service} is told error {ended.error}: {ended.description}")


@command(
    "end-conversation",
    QUEUE,
    CONVERSATION,
    option("--error", "N", "a code, 1 to 2147483647, that the partner is told (default: the conversation ends without an error)"),
    option("--description", "TEXT", "what the partner reads, together with --error"),
    switch("--cleanup", "remove everything at this side without telling the partner"),
    switch("--enable", "also enable the queue, in the order that its settings want"),
    WAIT,
    SAVE,
    YES,
    *WHERE,
)
def end_conversation(args: Namespace) -> None:
    """End a conversation, and with it a poison message.

    Print or save the messages of a conversation that wait in the queue, then end this side of it; they go for good. Asks first on a terminal. Exit
    code 0: ended, 1: there is no such conversation, or not wanted, 2: it could not be done.
    """
    from airflow_poison.cli import tables
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.conversations import conversations
    from airflow_poison.core.passes.messages import Chosen
    from airflow_poison.core.passes.recovery import Ending

    if args.cleanup and (args.error is not None or args.description is not None):
        raise wrong_usage("--cleanup: expected without --error and --description; the partner is not told.")
    if args.description is not None and args.error is None:
        raise wrong_usage("--description: expected with --error; without an error the partner reads nothing.")
    table = opened_queue(args)
    ending = Ending(
        table,
        system_clock(),
        opened_store(args),
        error=None if args.error is None else values.error_code(args.error),
        description=args.description or "",
        cleanup=args.cleanup,
        wait=values.duration("--wait", args.wait),
    )
    [row] = conversations(table, handle=args.conversation)
    ending.check(args.conversation)
    found = look_up(table, Chosen(conversation_id=args.conversation))
    if found:
        _check_asking(args)
    if found or args.output == "json":
        _keep(args, table, found)
    if found:
        _ask(args, f"End this conversation of {row.service} with {row.far_service}, and remove {counted(len(found))} from {table.name} for good?")
    key = uuid.uuid4().hex
    done = ending.end_and_enable(args.conversation, key) if args.enable else ending.end(args.conversation, key)[0]
    if args.output != "json":
        enabled = f" Queue {table.name} is enabled." if args.enable else ""
        line(screen(), f"Ended conversation {args.conversation}; removed {counted(done.removed)} from {table.name}. {_told(ending, row)}{enabled}")
        for sentence in tables.waiting(done):
            line(screen(), sentence)


def _told(ending: Ending, before: ConversationRow) -> str:
    """Say what the partner hears of an end."""
    from airflow_poison.core.conversations.endpoint import ConversationState

    if ending.cleanup:
        return f"{before.far_service} is not told."
    if before.state in {ConversationState.DISCONNECTED_INBOUND, ConversationState.ERROR}:
        return f"{before.far_service} has ended it before."
    if ending.error is None:
        return f"{before.far_service} is told of the end."
    said = f": {ending.description}" if ending.description else ""
    return f"{before.far_service} is told error {ending.error}{said}{'' if said.endswith(('.', '!', '?')) else '.'}"


def _with_conversations(table: QueueTable, found: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    """Return messages and all others of the conversations that they belong to."""
    from airflow_poison.core.passes.browse import look_up
    from airflow_poison.core.passes.messages import Chosen

    handles = {message.conversation_id for message in found if message.conversation_id}
    others = [message for each in sorted(handles) for message in look_up(table, Chosen(conversation_id=each))]
    alone = [message for message in found if not message.conversation_id]
    return tuple(sorted([*alone, *others], key=lambda message: message.lookup_id))


def _check_asking(args: Namespace) -> None:
    if not args.yes and not sys.stdin.isatty():
        raise wrong_usage("--yes is missing: standard input is no terminal, so nobody can be asked. Nothing was removed.")


def _check_free(table: QueueTable, found: Sequence[MessageRow]) -> None:
    """Raise MessageClaimedError while a pass has one of them: what cannot be removed is neither printed nor saved."""
    from airflow_poison.core.passes.messages import Chosen, find, refuse_claimed

    snapshot = table.snapshot()
    if found and snapshot.claims:
        refuse_claimed(table, snapshot, find(table, snapshot, Chosen.ids([message.lookup_id for message in found])))


def _keep(args: Namespace, table: QueueTable, found: Sequence[MessageRow]) -> None:
    """Print the whole messages, or save them, before anything is removed: what comes after may fail, and nothing is lost."""
    from airflow_poison.cli import tables

    if args.save is not None:
        _save(args.save, found)
    if args.output == "json":
        write_json({"queue": table.name, "messages": [_whole(message) for message in found], "saved": args.save})
        sys.stdout.flush()
    elif args.save is not None:
        line(screen(), f"Saved {counted(len(found))} in {args.save}.")
    else:
        tables.print_whole(table.name, found, system_clock().now(), most_body=None)
        sys.stdout.flush()


def _save(place: str, found: Sequence[MessageRow]) -> None:
    """Write JSON lines into a new file, and force them to disk. Raises InputError when there is such a file."""
    try:
        with Path(place).open("x", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(_whole(message))}\n" for message in found)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise wrong_usage(f"--save {place}: there is such a file already; expected a new one. Nothing was removed.") from error


def _whole(message: MessageRow) -> dict[str, object]:
    """Return a message with all of its body, as text where it is UTF-8, else in Base64."""
    text = message.text
    body = base64.b64encode(message.body).decode() if text is None else text
    return message.to_dict() | {"body": body, "body_cut": False}


def _ask(args: Namespace, question: str) -> None:
    """Go on when the answer is yes; else end with exit code 1."""
    if args.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        say("nothing", "was removed.")
        raise SystemExit(NO)
