"""``airflow poison decide``, ``recover``, ``remove`` and ``end-conversation``: decisions about halted queues, and messages that are removed for good.

These are printed or saved before, and confirmed by the user.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    CONVERSATION,
    IDS,
    QUEUE,
    REASON,
    SAVE,
    UNMASK,
    WAIT,
    WHERE,
    YES,
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
from airflow_poison.cli.plans import PLANNED, act, ask, check_asking, is_planned
from airflow_poison.cli.terminal import cuttable, line, report, screen, table, write_json
from airflow_poison.cli.terminal import messages as counted

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.passes.browse import MessageRow
    from airflow_poison.passes.conversations import ConversationRow
    from airflow_poison.passes.decide import Decision
    from airflow_poison.passes.halts import Endpoints, HaltedEndpoint
    from airflow_poison.passes.recovery import Ending
    from airflow_poison.queue import Queue
    from airflow_poison.rules.queue_disabling import EndConversation


_MEANS = {
    "end": "its conversation is ended with an error, which the partner gets; its messages go for good; then the queue is enabled",
    "remove": "the message is put out of the way and kept, with its conversation; then the queue is enabled",
    "return": "the message is given fresh attempts in main; then the queue is enabled",
    "enable": "the queue is enabled; the message stays as it is, and may halt it again",
    "leave": "nothing is changed",
}


@dataclass(frozen=True, slots=True)
class _Open:
    """A halt that waits for a decision.

    :param message: its suspect; None: there is none, or it is gone.
    :param others: further messages of its conversation in the queue.
    :param conversation: of the suspect, where it is one of the queue's services and has not ended here.
    """

    halt: HaltedEndpoint
    message: MessageRow | None
    others: int
    conversation: ConversationRow | None

    @property
    def choices(self) -> tuple[Decision, ...]:
        """What can be decided."""
        from airflow_poison.passes.decide import choices

        return choices(self.halt, self.message, self.conversation)

    def to_dict(self) -> dict[str, object]:
        message = None if self.message is None else self.message.to_dict()
        conversation = None if self.conversation is None else self.conversation.to_dict()
        found = {"message": message, "others": self.others, "conversation": conversation, "decisions": list(self.choices)}
        return self.halt.to_dict() | found


READERS = ("main", "poison", "any")
DECISIONS = tuple(_MEANS)


@command(
    "decide",
    Argument(("queue",), {"metavar": "QUEUE", "nargs": "?", "help": "the queue (default: list all halted ones)"}, "queues"),
    Argument(("decision",), {"metavar": "DECISION", "nargs": "?", "help": f"{', '.join(DECISIONS)} (default: show)"}, DECISIONS),
    option("--sub-queue", "PLACE", "main, poison (the reader of the poison sub-queue) or any (default: any)", completes=READERS, default="any"),
    option("--lookup-id", "ID", "decide only while this message is what halted the queue"),
    option("--to-queue", "QUEUE", "an existing queue in which a removed message is kept (default: the poison sub-queue)", completes="queues"),
    option("--error", "N", "with end: the error code that the partner gets (default: 127)"),
    option("--description", "TEXT", "with end: what the partner reads (default: Unable to process message.)"),
    REASON,
    *WHERE,
)
def decide(args: Namespace) -> None:
    """Decide about a halted queue.

    Without QUEUE, list the halted queues of a store; without DECISION, show what halted one and what can be decided; else do it: what concerns the
    message and the queue, in the safe order. What is removed is kept. Exit code 0: shown or done, 1: nothing is halted, or not so any more, 2: it
    could not be done.
    """
    from airflow_poison.passes.halts import Endpoints

    which = Endpoints(values.one_of("--sub-queue", args.sub_queue, list(Endpoints)))
    if args.decision is not None:
        _carry_out(args, which)
        return
    if any(given is not None for given in (args.lookup_id, args.to_queue, args.error, args.description)):
        raise wrong_usage("--lookup-id, --to-queue, --error and --description: expected with DECISION.")
    if args.queue is None:
        _list(args, which)
    else:
        _show(args, which)


def _list(args: Namespace, which: Endpoints) -> None:
    store = store_of(args)
    found, failed = looked_for(store, (), lambda queue: _open(queue, which))
    tables = store.tables
    if args.output == "json":
        write_json({"store": tables.uri, "halted": [each.to_dict() for each in found], "errors": failed})
    elif found:
        rows = table("queue", "state", "message", "decisions", "reason", right=["message"], cut="reason")
        for each in found:
            number = "" if each.halt.lookup_id is None else str(each.halt.lookup_id)
            rows.add_row(each.halt.name, each.halt.state.value, number, ", ".join(each.choices), cuttable(each.halt.reason))
        screen().print(rows)
    nothing = (
        f"there is no queue yet: {tables.missing_reason}."
        if tables.missing_reason
        else f"every queue in {tables.uri} receives: there is nothing to decide."
    )
    end_with(args.output, failed, found=bool(found), nothing=nothing)


def _show(args: Namespace, which: Endpoints) -> None:
    from airflow_poison.cli import tables

    queue = queue_of(args)
    found = _open(queue, which)
    if args.output == "json":
        write_json({"queue": queue.name, "halted": [each.to_dict() for each in found]})
    for each in found if args.output != "json" else ():
        out, halt = screen(), each.halt
        line(out, (halt.name, "bold"), f" is {halt.state.value}: {halt.reason}" if halt.reason else f" is {halt.state.value}.")
        if each.message is not None:
            tables.print_whole(queue.name, [each.message], queue.clock.now())
        if each.others:
            line(out, f"In the queue of its conversation, too: {counted(each.others)}.")
        if each.conversation is not None:
            tables.print_conversation(each.conversation, queue.clock.now())
        for choice in each.choices:
            line(out, (f"decide {args.queue} {choice.value} --sub-queue {halt.sub_queue.value}", "bold"), f": {_MEANS[choice]}.")
    if not found:
        end_with_no(args.output, f"queue {queue.name} receives: there is nothing to decide.")


def _carry_out(args: Namespace, which: Endpoints) -> None:
    from airflow_poison.passes.decide import Decision
    from airflow_poison.passes.decide import decide as carry_out
    from airflow_poison.passes.halts import halted_endpoint
    from airflow_poison.values.errors import DecisionOutdatedError

    wanted = Decision(values.one_of("DECISION", args.decision, list(Decision)))
    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    end = _end(args, wanted)
    queue = queue_of(args)
    halt = halted_endpoint(queue.table, which)
    if halt is None:
        end_with_no("", f"queue {queue.name} receives: there is nothing to decide.")
    if number is not None and number != halt.lookup_id:
        by = "no single message" if halt.lookup_id is None else f"message {halt.lookup_id}"
        raise DecisionOutdatedError(f"Queue {halt.name!r} is {halt.state.value} by {by}, not by message {number}. Nothing has changed.")
    done = carry_out(queue.table, queue.store.tables, queue.clock, wanted, halt, run=uuid.uuid4().hex, to_queue=args.to_queue, end=end)
    where = f" {counted(done.messages)} went to {done.to}." if wanted.moves else ""
    if done.ended is not None:
        where = f" {counted(done.messages)} went with conversation {done.ended.conversation}; {done.ended.far_service} gets error {end.error}."
    enabled = f"Queue {halt.name} is enabled; it was {halt.state.value}.{where}"
    report(args.output, done.to_dict(), f"Queue {halt.name} is left {halt.state.value}." if wanted is Decision.LEAVE else enabled)


def _end(args: Namespace, wanted: Decision) -> EndConversation:
    """Return the error that the partner gets. Raises InputError."""
    from airflow_poison.passes.decide import Decision
    from airflow_poison.rules.queue_disabling import REMOVAL, EndConversation

    if wanted is not Decision.END and (args.error is not None or args.description is not None):
        raise wrong_usage("--error and --description: expected with the decision end.")
    code = REMOVAL.error if args.error is None else values.error_code(args.error)
    return EndConversation(code, REMOVAL.description if args.description is None else args.description)


def _open(queue: Queue, which: Endpoints) -> list[_Open]:
    from airflow_poison.passes.decide import suspect, suspect_conversation
    from airflow_poison.passes.halts import ENDPOINTS, Endpoints, halted_endpoint

    table, places = queue.reading, [Endpoints(place.value) for place in ENDPOINTS] if which is Endpoints.ANY else [which]
    halts = [halt for place in places if (halt := halted_endpoint(table, place)) is not None]
    found = [(halt, *suspect(table, queue.clock, halt)) for halt in halts]
    return [_Open(halt, message, others, suspect_conversation(table, message)) for halt, message, others in found]


# Messages go for good ------------------------------------------------------------------------------------------------


@command(
    "remove",
    QUEUE,
    IDS,
    switch("--conversation", "with all messages of the conversations that they belong to"),
    SAVE,
    UNMASK,
    *PLANNED,
    *WHERE,
)
def remove(args: Namespace) -> None:
    """Take messages out of a queue for good.

    Print messages whole, or save them, then take them out of the queue, all or none. With options of a selection instead of ids: a plan, which 'undo'
    takes back while the table still has the files. Asks first on a terminal. Exit code 0: removed, 1: not there, not wanted, or passes hold some of a
    selection, 2: it could not be done.
    """
    from airflow_poison.desk.actions import PlanAction, Verb
    from airflow_poison.passes.conversations import awaited
    from airflow_poison.passes.messages import Chosen
    from airflow_poison.passes.move import unanswered
    from airflow_poison.values.errors import MessageNotFoundError

    if is_planned(args):
        if args.save is not None or args.conversation:
            raise wrong_usage("--save and --conversation: expected with ids; 'query --to FILE' keeps the messages of a selection.")
        act(args, PlanAction(verb=Verb.REMOVE))
        return
    numbers = values.lookup_ids(args.lookup_ids)
    check_asking(args, "removed")
    queue = queue_of(args)
    found = queue.look_up(numbers, unmask=True)
    if missing := sorted(set(numbers) - {message.lookup_id for message in found}):
        which = ", ".join(map(str, missing))
        raise MessageNotFoundError(f"Not in queue {queue.name!r}: {which}. Settled, moved or removed, or never sent. Nothing was removed.")
    if args.conversation:
        found = _with_conversations(queue, found)
    _check_free(queue, found)
    for sentence in unanswered(queue.name, awaited(queue.reading, Chosen.ids(numbers))):
        say("note", f"{sentence} What is only removed is never answered.")
    _keep(args, queue, found)
    ask(args, f"Remove {counted(len(found))} from {queue.name} for good?", "removed")
    done = queue.remove_messages([message.lookup_id for message in found])
    if args.output != "json":
        line(screen(), f"Removed {counted(len(done.messages))} from {queue.name}.")


@command("recover", QUEUE, option("--lookup-id", "ID", "another message than the one that halted the queue"), SAVE, UNMASK, YES, REASON, *WHERE)
def recover(args: Namespace) -> None:
    """Remove the message that halted a queue, and enable the queue.

    Print or save the message that halted the queue, with its conversation; remove it, then enable the queue. Asks first on a terminal. Exit code 0:
    done, 1: no message halted it, or not wanted, 2: it could not be done.
    """
    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    check_asking(args, "removed")
    queue = queue_of(args)
    wanted = queue.reading.snapshot().control.halted_by if number is None else number
    found = () if wanted is None else _with_conversations(queue, queue.look_up([wanted], unmask=True))
    _check_free(queue, found)
    if wanted is not None and (found or number is None):
        _keep(args, queue, found)
        ask(args, f"Remove {counted(len(found))} from {queue.name} for good, and enable the queue?", "removed")
    done = queue.recover(number)
    if args.output != "json":
        line(screen(), f"Removed {counted(len(done.removed))} from {queue.name}, and enabled it; it was {done.before}.")
        if (ended := done.ended) is not None:
            line(screen(), f"Conversation {ended.conversation} was ended; {ended.far_service} gets error {ended.error}: {ended.description}")


@command(
    "end-conversation",
    QUEUE,
    CONVERSATION,
    option("--error", "N", "an error code, 1 to 2147483647, that the partner gets (default: the conversation ends without an error)"),
    option("--description", "TEXT", "what the partner reads, together with --error"),
    switch("--cleanup", "remove everything at this side without a message to the partner"),
    switch("--enable", "also enable the queue, in the order that its settings want"),
    WAIT,
    SAVE,
    UNMASK,
    YES,
    REASON,
    *WHERE,
)
def end_conversation(args: Namespace) -> None:
    """End a conversation, and with it a poison message.

    Print or save the messages of a conversation that wait in the queue, then end this side of it; they go for good. Asks first on a terminal. Exit
    code 0: ended, 1: there is no such conversation, or not wanted, 2: it could not be done.
    """
    from airflow_poison.cli import tables
    from airflow_poison.passes.browse import look_up
    from airflow_poison.passes.messages import Chosen
    from airflow_poison.passes.recovery import Ending

    if args.cleanup and (args.error is not None or args.description is not None):
        raise wrong_usage("--cleanup: expected without --error and --description; the partner gets no message.")
    if args.description is not None and args.error is None:
        raise wrong_usage("--description: expected with --error; without an error the partner reads nothing.")
    queue = queue_of(args)
    ending = Ending(
        queue.table,
        queue.clock,
        queue.store.tables,
        error=None if args.error is None else values.error_code(args.error),
        description=args.description or "",
        cleanup=args.cleanup,
        wait=values.duration("--wait", args.wait),
    )
    [row] = queue.conversations(conversation=args.conversation)
    ending.check(args.conversation)
    found = look_up(queue.reading, Chosen(conversation_id=args.conversation), unmask=True)
    if found:
        check_asking(args, "removed")
    if found or args.output == "json":
        _keep(args, queue, found)
    if found:
        ask(
            args,
            f"End this conversation of {row.service} with {row.far_service}, and remove {counted(len(found))} from {queue.name} for good?",
            "removed",
        )
    key = uuid.uuid4().hex
    done = ending.end_and_enable(args.conversation, key) if args.enable else ending.end(args.conversation, key)[0]
    if args.output != "json":
        enabled = f" Queue {queue.name} is enabled." if args.enable else ""
        line(
            screen(),
            f"Ended conversation {args.conversation}; removed {counted(done.removed)} from {queue.name}. {_ended_text(ending, row)}{enabled}",
        )
        for sentence in tables.waiting(done):
            line(screen(), sentence)


def _ended_text(ending: Ending, before: ConversationRow) -> str:
    """Say what the partner hears of an end."""
    from airflow_poison.dialogs.acts import ConversationState

    if ending.cleanup:
        return f"{before.far_service} gets no message."
    if before.state in {ConversationState.DISCONNECTED_INBOUND, ConversationState.ERROR}:
        return f"{before.far_service} has ended it before."
    if ending.error is None:
        return f"{before.far_service} gets a message that it has ended."
    about = f": {ending.description}" if ending.description else ""
    return f"{before.far_service} gets error {ending.error}{about}{'' if about.endswith(('.', '!', '?')) else '.'}"


def _with_conversations(queue: Queue, found: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    """Return messages and all others of the conversations that they belong to."""
    from airflow_poison.passes.browse import look_up
    from airflow_poison.passes.messages import Chosen

    handles = {message.conversation_id for message in found if message.conversation_id}
    others = [message for each in sorted(handles) for message in look_up(queue.reading, Chosen(conversation_id=each), unmask=True)]
    alone = [message for message in found if not message.conversation_id]
    return tuple(sorted([*alone, *others], key=lambda message: message.lookup_id))


def _check_free(queue: Queue, found: Sequence[MessageRow]) -> None:
    """Raise MessageClaimedError while a pass has one of them: what cannot be removed is neither printed nor saved."""
    from airflow_poison.passes.messages import Chosen, find, refuse_claimed

    table = queue.reading
    snapshot = table.snapshot()
    if found and snapshot.claims:
        refuse_claimed(table, snapshot, find(table, snapshot, Chosen.ids([message.lookup_id for message in found])))


def _keep(args: Namespace, queue: Queue, found: Sequence[MessageRow]) -> None:
    """Print the whole messages, or save them, before anything is removed: what comes after may fail, and nothing is lost."""
    from airflow_poison.cli import tables
    from airflow_poison.passes.browse import masked, recorded_mask

    masking = None if args.unmask else recorded_mask(queue.reading)
    shown = tuple(masked(message, masking) for message in found)
    if args.save is not None:
        _save(args.save, found)
    elif masking is not None and found:
        say("note", "what the queue hides is printed as ***: --save FILE keeps the whole messages, --unmask prints them.")
    if args.output == "json":
        write_json({"queue": queue.name, "messages": [_whole(message) for message in shown], "saved": args.save})
        sys.stdout.flush()
    elif args.save is not None:
        line(screen(), f"Saved {counted(len(found))} in {args.save}.")
    else:
        tables.print_whole(queue.name, shown, queue.clock.now(), most_body=None)
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
