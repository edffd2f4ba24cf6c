"""``airflow poison decide``: which halted queues wait for people, and what becomes of one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.command import WHERE, Argument, command, end_with_no, option, wrong_usage
from airflow_poison.cli.stores import end_with, looked_for, opened_queue, opened_store, queue_to_read, system_clock
from airflow_poison.cli.terminal import cuttable, line, screen, table, tell, write_json
from airflow_poison.cli.terminal import messages as counted

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.passes.browse import MessageRow
    from airflow_poison.core.passes.conversations import ConversationRow
    from airflow_poison.core.passes.decide import Decision
    from airflow_poison.core.passes.halts import Endpoints, HaltedEndpoint
    from airflow_poison.core.policies.recovery import EndConversation
    from airflow_poison.core.store.queue_table import QueueTable

_MEANS = {
    "end": "its conversation is ended with an error, which the partner is told; its messages go for good; then the queue is enabled",
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
        from airflow_poison.core.passes.decide import choices

        return choices(self.halt, self.message, self.conversation)

    def to_dict(self) -> dict[str, object]:
        message = None if self.message is None else self.message.to_dict()
        conversation = None if self.conversation is None else self.conversation.to_dict()
        found = {"message": message, "others": self.others, "conversation": conversation, "decisions": list(self.choices)}
        return self.halt.to_dict() | found


READERS = ("main", "poison", "any")
DECISIONS = ("end", "remove", "return", "enable", "leave")


@command(
    "decide",
    Argument(("queue",), {"metavar": "QUEUE", "nargs": "?", "help": "the queue (default: list all halted ones)"}, "queues"),
    Argument(("decision",), {"metavar": "DECISION", "nargs": "?", "help": f"{', '.join(DECISIONS)} (default: show)"}, DECISIONS),
    option("--sub-queue", "PLACE", "main, poison (the reader of the poison sub-queue) or any (default: any)", completes=READERS, default="any"),
    option("--lookup-id", "ID", "decide only while this message is what halted the queue"),
    option("--to-queue", "QUEUE", "an existing queue in which a removed message is kept (default: the poison sub-queue)", completes="queues"),
    option("--error", "N", "with end: the code that the partner is told (default: 127)"),
    option("--description", "TEXT", "with end: what the partner reads (default: Unable to process message.)"),
    *WHERE,
)
def decide(args: Namespace) -> None:
    """Say what becomes of a halted queue.

    Without QUEUE, list the halted queues of a store; without DECISION, show what halted one and what can be decided; else do it: what concerns the
    message and the queue, in the safe order. What is removed is kept. Exit code 0: shown or done, 1: nothing is halted, or not so any more, 2: it
    could not be done.
    """
    from airflow_poison.core.passes.halts import Endpoints

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
    store = opened_store(args)
    found, failed = looked_for(store, (), lambda queue: _open(queue, which))
    if args.output == "json":
        write_json({"store": store.uri, "halted": [each.to_dict() for each in found], "errors": failed})
    elif found:
        rows = table("queue", "state", "message", "decisions", "reason", right=["message"], cut="reason")
        for each in found:
            number = "" if each.halt.lookup_id is None else str(each.halt.lookup_id)
            rows.add_row(each.halt.name, each.halt.state.value, number, ", ".join(each.choices), cuttable(each.halt.reason))
        screen().print(rows)
    nothing = f"there is no queue yet: {store.absence}." if store.absence else f"every queue in {store.uri} receives: nobody has to decide."
    end_with(args.output, failed, found=bool(found), nothing=nothing)


def _show(args: Namespace, which: Endpoints) -> None:
    from airflow_poison.cli import tables

    queue = queue_to_read(args)
    found = _open(queue, which)
    if args.output == "json":
        write_json({"queue": queue.name, "halted": [each.to_dict() for each in found]})
    for each in found if args.output != "json" else ():
        out, halt = screen(), each.halt
        line(out, (halt.name, "bold"), f" is {halt.state.value}: {halt.reason}" if halt.reason else f" is {halt.state.value}.")
        if each.message is not None:
            tables.print_whole(queue.name, [each.message], system_clock().now())
        if each.others:
            line(out, f"In the queue of its conversation, too: {counted(each.others)}.")
        if each.conversation is not None:
            tables.print_conversation(each.conversation, system_clock().now())
        for choice in each.choices:
            line(out, (f"decide {args.queue} {choice.value} --sub-queue {halt.sub_queue.value}", "bold"), f": {_MEANS[choice]}.")
    if not found:
        end_with_no(args.output, f"queue {queue.name} receives: there is nothing to decide.")


def _carry_out(args: Namespace, which: Endpoints) -> None:
    from airflow_poison.core.errors import DecisionOutdatedError
    from airflow_poison.core.passes.decide import Decision
    from airflow_poison.core.passes.decide import decide as carry_out
    from airflow_poison.core.passes.halts import halted_endpoint

    wanted = Decision(values.one_of("DECISION", args.decision, list(Decision)))
    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    end = _end(args, wanted)
    queue = opened_queue(args)
    halt = halted_endpoint(queue, which)
    if halt is None:
        end_with_no("", f"queue {queue.name} receives: there is nothing to decide.")
    if number is not None and number != halt.lookup_id:
        by = "no single message" if halt.lookup_id is None else f"message {halt.lookup_id}"
        raise DecisionOutdatedError(f"Queue {halt.name!r} is {halt.state.value} by {by}, not by message {number}. Nothing has changed.")
    done = carry_out(queue, opened_store(args), system_clock(), wanted, halt, run=uuid.uuid4().hex, to_queue=args.to_queue, end=end)
    where = f" {counted(done.messages)} went to {done.to}." if wanted.moves else ""
    if done.ended is not None:
        where = f" {counted(done.messages)} went with conversation {done.ended.conversation}; {done.ended.far_service} is told error {end.error}."
    enabled = f"Queue {halt.name} is enabled; it was {halt.state.value}.{where}"
    tell(args.output, done.to_dict(), f"Queue {halt.name} is left {halt.state.value}." if wanted is Decision.LEAVE else enabled)


def _end(args: Namespace, wanted: Decision) -> EndConversation:
    """Return what the partner is told. Raises InputError."""
    from airflow_poison.core.passes.decide import Decision
    from airflow_poison.core.policies.recovery import REMOVAL, EndConversation

    if wanted is not Decision.END and (args.error is not None or args.description is not None):
        raise wrong_usage("--error and --description: expected with the decision end.")
    code = REMOVAL.error if args.error is None else values.error_code(args.error)
    return EndConversation(code, REMOVAL.description if args.description is None else args.description)


def _open(queue: QueueTable, which: Endpoints) -> list[_Open]:
    """Return the halts of a queue. Nothing is changed."""
    from airflow_poison.core.passes.decide import suspect, suspect_conversation
    from airflow_poison.core.passes.halts import ENDPOINTS, Endpoints, halted_endpoint

    places = [Endpoints(place.value) for place in ENDPOINTS] if which is Endpoints.ANY else [which]
    halts = [halt for place in places if (halt := halted_endpoint(queue, place)) is not None]
    found = [(halt, *suspect(queue, system_clock(), halt)) for halt in halts]
    return [_Open(halt, message, others, suspect_conversation(queue, message)) for halt, message, others in found]
