"""``airflow poison decide``: which halted queues wait for people, and what becomes of one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.cli import queue_tables, values
from airflow_poison.cli.dialog_tables import print_conversation
from airflow_poison.cli.humanly import messages as counted
from airflow_poison.cli.looking import plain, write_json
from airflow_poison.cli.screen import cuttable, line, screen, table
from airflow_poison.cli.stores import opened_queue, opened_store, queue_to_read
from airflow_poison.cli.telling import NO, check_output, command, say
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import DecisionOutdatedError, InputError, PoisonError
from airflow_poison.core.passes.decide import Decision, choices, suspect, suspect_conversation
from airflow_poison.core.passes.decide import decide as carry_out
from airflow_poison.core.passes.halts import ENDPOINTS, Endpoints, HaltedEndpoint, halted_endpoint
from airflow_poison.core.policies.recovery import REMOVAL, EndConversation

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_poison.core.passes.browse import MessageRow
    from airflow_poison.core.passes.conversations import ConversationRow
    from airflow_poison.core.store.queue_table import QueueTable

_MEANS = {
    Decision.END: "its conversation is ended with an error, which the partner is told; its messages go for good; then the queue is enabled",
    Decision.REMOVE: "the message is put out of the way and kept, with its conversation; then the queue is enabled",
    Decision.RETURN: "the message is given fresh attempts in main; then the queue is enabled",
    Decision.ENABLE: "the queue is enabled; the message stays as it is, and may halt it again",
    Decision.LEAVE: "nothing is changed",
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
        return choices(self.halt, self.message, self.conversation)

    def to_dict(self) -> dict[str, object]:
        message = None if self.message is None else plain(self.message, body=True)
        conversation = None if self.conversation is None else self.conversation.to_dict()
        found = {"message": message, "others": self.others, "conversation": conversation, "decisions": list(self.choices)}
        return self.halt.to_dict() | found


@command
def decide(args: Namespace) -> None:
    """List what waits for a decision, show that of one queue, or carry one out. Ends with exit code 1 when nothing waits for it."""
    output, which = check_output(args.output), values.one_of("--sub-queue", args.sub_queue, list(Endpoints))
    if args.decision is not None:
        _carry_out(args, output, Endpoints(which))
        return
    if any(given is not None for given in (args.lookup_id, args.to_queue, args.error, args.description)):
        raise InputError("--lookup-id, --to-queue, --error and --description: expected with DECISION.")
    if args.queue is None:
        _list(args, output, Endpoints(which))
    else:
        _show(args, output, Endpoints(which))


def _list(args: Namespace, output: str, which: Endpoints) -> None:
    store = opened_store(args)
    found, failed = list[_Open](), dict[str, str]()
    for name in store.names():
        try:
            found += _open(store.open(name, upgrade=False), which)
        except PoisonError as error:
            failed[name] = str(error)
    if output == "json":
        write_json({"store": store.uri, "halted": [each.to_dict() for each in found], "errors": failed})
    elif found:
        _print(found)
    for text in failed.values():
        say("error", text)
    if failed:
        raise SystemExit(2)
    if not found:
        nothing = f"there is no queue yet: {store.absence}." if store.absence else f"every queue in {store.uri} receives: nobody has to decide."
        _nothing(output, nothing)


def _show(args: Namespace, output: str, which: Endpoints) -> None:
    queue = queue_to_read(args)
    found = _open(queue, which)
    if output == "json":
        write_json({"queue": queue.name, "halted": [each.to_dict() for each in found]})
    for each in found if output != "json" else ():
        out, halt = screen(), each.halt
        line(out, (halt.name, "bold"), f" is {halt.state.value}: {halt.reason}" if halt.reason else f" is {halt.state.value}.")
        if each.message is not None:
            queue_tables.print_whole(queue.name, [each.message], SystemClock().now())
        if each.others:
            line(out, f"In the queue of its conversation, too: {counted(each.others)}.")
        if each.conversation is not None:
            print_conversation(each.conversation, SystemClock().now())
        for choice in each.choices:
            line(out, (f"decide {args.queue} {choice.value} --sub-queue {halt.sub_queue.value}", "bold"), f": {_MEANS[choice]}.")
    if not found:
        _nothing(output, f"queue {queue.name} receives: there is nothing to decide.")


def _carry_out(args: Namespace, output: str, which: Endpoints) -> None:
    wanted = Decision(values.one_of("DECISION", args.decision, list(Decision)))
    number = None if args.lookup_id is None else values.whole("--lookup-id", args.lookup_id)
    end = _end(args, wanted)
    queue = opened_queue(args)
    halt = halted_endpoint(queue, which)
    if halt is None:
        say("nothing", f"queue {queue.name} receives: there is nothing to decide.")
        raise SystemExit(NO)
    if number is not None and number != halt.lookup_id:
        by = "no single message" if halt.lookup_id is None else f"message {halt.lookup_id}"
        raise DecisionOutdatedError(f"Queue {halt.name!r} is {halt.state.value} by {by}, not by message {number}. Nothing has changed.")
    done = carry_out(queue, opened_store(args), SystemClock(), wanted, halt, run=uuid.uuid4().hex, to_queue=args.to_queue, end=end)
    if output == "json":
        write_json(done.to_dict())
    elif wanted is Decision.LEAVE:
        line(screen(), f"Queue {halt.name} is left {halt.state.value}.")
    else:
        where = f" {counted(done.messages)} went to {done.to}." if wanted.moves else ""
        if done.ended is not None:
            where = f" {counted(done.messages)} went with conversation {done.ended.conversation}; {done.ended.far_service} is told error {end.error}."
        line(screen(), f"Queue {halt.name} is enabled; it was {halt.state.value}.{where}")


def _end(args: Namespace, wanted: Decision) -> EndConversation:
    """Return what the partner is told. Raises InputError."""
    if wanted is not Decision.END and (args.error is not None or args.description is not None):
        raise InputError("--error and --description: expected with the decision end.")
    code = REMOVAL.error if args.error is None else values.error_code(args.error)
    return EndConversation(code, REMOVAL.description if args.description is None else args.description)


def _open(queue: QueueTable, which: Endpoints) -> list[_Open]:
    """Return the halts of a queue. Nothing is changed."""
    places = [Endpoints(place.value) for place in ENDPOINTS] if which is Endpoints.ANY else [which]
    halts = [halt for place in places if (halt := halted_endpoint(queue, place)) is not None]
    found = [(halt, *suspect(queue, SystemClock(), halt)) for halt in halts]
    return [_Open(halt, message, others, suspect_conversation(queue, message)) for halt, message, others in found]


def _print(found: Sequence[_Open]) -> None:
    rows = table("queue", "state", "message", "decisions", "reason", right=["message"], cut="reason")
    for each in found:
        halt = each.halt
        number = "" if halt.lookup_id is None else str(halt.lookup_id)
        rows.add_row(halt.name, halt.state.value, number, ", ".join(each.choices), cuttable(halt.reason))
    screen().print(rows)


def _nothing(output: str, text: str) -> None:
    """End with exit code 1; JSON has said it already."""
    if output != "json":
        say("nothing", text)
    raise SystemExit(NO)
