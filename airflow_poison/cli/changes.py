"""``airflow poison return``, ``move``, ``enable``, ``disable``, ``alter``, ``restart`` and ``maintain``: one verb each.

``airflow poison send-to-kafka``: messages leave a queue for a Kafka topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_poison.cli import terminal, values
from airflow_poison.cli.command import (
    IDS,
    INTERRUPTED,
    NO,
    QUEUE,
    REASON,
    SET,
    WHERE,
    YES,
    Argument,
    command,
    noted_warnings,
    option,
    queue_of,
    say,
    several,
    switch,
    wrong_usage,
)
from airflow_poison.cli.plans import PLANNED, act, ask, check_asking, is_planned
from airflow_poison.cli.terminal import messages, one_line, report
from airflow_poison.cli.values import ANY, SELECTION, is_selected, selection

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.selection import Selection
    from airflow_poison.passes.to_kafka import SendToKafkaResult
    from airflow_poison.queue import Queue
    from airflow_poison.sources.kafka import Kafka

_KEYS = ("record", "lookup_id", "group_id")


@command(
    "send-to-kafka",
    QUEUE,
    Argument(IDS.flags, {**IDS.options, "help": "lookup ids of messages, or options of a selection instead, or neither"}),
    option("--topic", "TOPIC", "where to; it must exist"),
    option("--connection", "CONN_ID", "connection of type kafka (default: kafka_default)"),
    several("--set", "NAME=VALUE", "settings of librdkafka instead of a connection: bootstrap.servers=host:9092"),
    option(
        "--key", "KEY", f"what the records' keys are: {', '.join(_KEYS[:-1])} or {_KEYS[-1]} (default: {_KEYS[0]})", completes=_KEYS, default=_KEYS[0]
    ),
    switch("--take-back", "send nothing: put what waits in the outbox for the topic into poison"),
    *SELECTION,
    YES,
    REASON,
    *WHERE,
)
def send_to_kafka(args: Namespace) -> None:
    """Send messages to a Kafka topic.

    Move messages to a topic, each once: lookup ids all in one commit, a selection in commits of 10,000; neither: only what earlier calls have left
    on its way there. It cannot be undone. A record that the topic refuses comes into poison with the reason. --take-back puts what is on its way
    there into poison. Asks first on a terminal. Exit code 0: all are sent, 1: one of them is not there, no message is selected, not wanted, the topic
    refuses some, or passes hold some of them, 2: it could not be done.
    """
    kafka, chosen = _kafka(args), _chosen(args)
    if args.take_back:
        _take_back(args, kafka, chosen)
        return
    if chosen is not None:
        check_asking(args, "done; 'find' shows the messages of a selection")
    queue = queue_of(args)
    number = 0 if chosen is None else _number(queue, chosen)
    if number:
        ask(args, f"Send {messages(number)} of {args.queue} to topic {kafka.topic}, for good?")
    try:
        done = _sent(args, queue, kafka, chosen)
    except KeyboardInterrupt:
        again = f"'send-to-kafka {args.queue} --topic {kafka.topic}' sends those that are on their way"
        say("interrupted", f"each message is in the queue, on its way or in the topic; {again}.")
        raise SystemExit(INTERRUPTED) from None
    lines = [f"Sent {messages(done.sent)} of {done.queue} to topic {done.topic}."]
    if done.finished:
        lines.append(f"An earlier call had put {messages(done.finished)} there; the outbox has them no more.")
    report(args.output, done.to_dict(), *lines)
    if chosen is not None and not number:
        say("nothing", f"no message of {args.queue} is selected.")
    if done.returned:
        say("refused", f"the topic does not take {messages(done.returned)}. They are in poison of {args.queue}, with the reason.")
    if done.left:
        say("waiting", f"{messages(done.left)} stay: passes have claimed them, or they were changed meanwhile.")
    if done.left or done.returned or (chosen is not None and not number):
        raise SystemExit(NO)


def _take_back(args: Namespace, kafka: Kafka, chosen: Selection | list[int] | None) -> None:
    if chosen is not None:
        raise wrong_usage("--take-back: expected no lookup ids and no options of a selection; all that waits for the topic is taken back.")
    done = queue_of(args).take_back_from_kafka(kafka)
    lines = [f"Took {messages(done.returned)} of {done.queue} back into poison."]
    if done.finished:
        lines.append(f"{messages(done.finished)} had been put into topic {done.topic}; the outbox has them no more.")
    report(args.output, done.to_dict(), *lines)


def _kafka(args: Namespace) -> Kafka:
    from airflow_poison.sources.kafka import Kafka

    if args.topic is None:
        raise wrong_usage("--topic is missing: expected the name of a topic.")
    values.one_of("--key", args.key, _KEYS)
    if args.set and args.connection is not None:
        raise wrong_usage("--set and --connection: expected one of them.")
    settings = values.pairs("--set", args.set) if args.set else args.connection or "kafka_default"
    return Kafka(args.topic, settings)


def _chosen(args: Namespace) -> Selection | list[int] | None:
    """Return which messages are meant; None: those alone that are on their way. Raises InputError."""
    if not is_selected(args):
        return values.lookup_ids(args.lookup_ids) if args.lookup_ids else None
    if args.lookup_ids:
        raise wrong_usage(f"{' '.join(args.lookup_ids)}: expected lookup ids, or options of a selection, and not both.")
    return selection(args)


def _number(queue: Queue, chosen: Selection | list[int]) -> int:
    from airflow_poison.desk.exports import selected

    return len(set(chosen)) if isinstance(chosen, list) else selected(queue.reading, chosen).number


def _sent(args: Namespace, queue: Queue, kafka: Kafka, chosen: Selection | list[int] | None) -> SendToKafkaResult:
    if chosen is None or isinstance(chosen, list):
        return queue.send_to_kafka(chosen or (), kafka, key=args.key)
    return queue.send_to_kafka((), kafka, selection=chosen, key=args.key)


@command("return", QUEUE, REASON, *WHERE)
def return_due(args: Namespace) -> None:
    """End the retry cycle of messages that are due.

    Move every message whose retry delay is over from retry to main. Exit code 0: done, also when nothing was due, 2: it could not be done.
    """
    done = queue_of(args).return_due()
    also = f", and {terminal.messages(done.postponed)} that a handler had postponed" if done.postponed else ""
    waiting = f"{terminal.messages(done.waiting)} wait in retry" if done.waiting != 1 else "1 message waits in retry"
    if done.next_due_at is not None:
        waiting = f"{waiting}, the next is due {terminal.due(datetime.fromisoformat(done.next_due_at), values.now())}"
    report(args.output, done.to_dict(), f"Returned {terminal.messages(done.returned)} of {args.queue} to main{also}; {waiting}.")


@command(
    "move",
    QUEUE,
    Argument(IDS.flags, {**IDS.options, "help": "lookup ids of messages, or the word all: what is in poison and not claimed goes to main"}),
    option("--to", "PLACE", "main, poison, or origin: the queue that each message came from (default: main)", completes=("main", "poison", "origin")),
    option("--to-queue", "QUEUE", "another queue, which must exist", completes="queues"),
    *PLANNED,
    *WHERE,
)
def move(args: Namespace) -> None:
    """Move messages to another sub-queue or queue.

    Move messages to main for another cycle, to poison, or into another queue. Ids: all or none. Options of a selection: a plan, which is shown, and
    on a terminal asked for. Exit code 0: moved, 1: one of them is not there, not wanted, or passes hold some of a selection, 2: it could not be done.
    """
    if is_planned(args):
        act(args, _planned_move(args))
        return
    everything = args.lookup_ids == ["all"]
    numbers = [] if everything else values.lookup_ids(args.lookup_ids)
    if args.to is not None and args.to_queue is not None:
        raise wrong_usage("--to and --to-queue: expected one of them.")
    if everything and (args.to not in {None, "main"} or args.to_queue is not None):
        raise wrong_usage("all: expected with --to main; name the messages that go elsewhere.")
    queue = queue_of(args)
    place = "main" if not args.to or args.to_queue is not None else values.one_of("--to", args.to, ("main", "poison", "origin"))
    to: Mapping[str, int]
    if everything:
        to = {"main": queue.put_back()}
    elif args.to_queue is not None or place == "origin":
        to = queue.send_to(numbers, args.to_queue).to
    else:
        to = {place: queue.move(numbers, place)}
    moved = sum(to.values())
    where = ", ".join(f"{count:,} to {place}" for place, count in to.items()) or "none"
    report(args.output, {"queue": args.queue, "moved": moved, "to": dict(to)}, f"Moved {terminal.messages(moved)} of {args.queue}: {where}.")


def _planned_move(args: Namespace) -> PlanAction:
    from airflow_poison.desk.actions import PlanAction, Verb

    if args.to is not None and args.to_queue is not None:
        raise wrong_usage("--to and --to-queue: expected one of them.")
    place = values.one_of("--to", args.to or "main", ("main", "poison", "origin"))
    if args.to_queue is not None or place == "origin":
        return PlanAction(verb=Verb.SEND_TO, target=args.to_queue or "")
    if place == "poison" and args.sub_queue is None:
        args.sub_queue = ANY
    return PlanAction(verb=Verb.MOVE, target=place)


@command(
    "waiting-rows",
    QUEUE,
    Argument(
        IDS.flags,
        {**IDS.options, "help": "lookup ids of messages whose rows are taken out, or the word all, or refused (default: the rows are listed)"},
    ),
    option("--to", "PLACE", "main or poison, where the messages come back to", completes=("main", "poison")),
    switch("--remove", "the messages stay settled, and their rows are gone"),
    switch("--force", "do not ask the output whether it has the rows: it is away for good, and no pass is under way"),
    REASON,
    *WHERE,
)
def waiting_rows(args: Namespace) -> None:
    """Show returned rows that wait for their outputs, or take them out.

    Without ids: list them. With ids, or all: have the messages come back as they were sent, or remove the rows; other rows of the same commits
    land first. With the word refused: remove rows that the output refuses and that name no message, and have all others land.

    Exit code 0: listed or done, 1: no such rows wait, 2: it could not be done.
    """
    queue = queue_of(args)
    if not args.lookup_ids:
        if args.to or args.remove or args.force:
            raise wrong_usage("--to, --remove and --force: expected with lookup ids, or with the word all.")
        found = queue.waiting_rows()
        lines = [
            f"{each.rows:,} rows for {each.uri or 'a function'} since version {each.version}, of messages {each.lookup_ids or '(not named)'}"
            + (f"; {each.unnamed:,} name none" if each.unnamed and each.lookup_ids else "")
            for each in found
        ]
        report(args.output, {"queue": args.queue, "waiting": [each.to_dict() for each in found]}, *(lines or [f"No rows of {args.queue} wait."]))
        return
    if bool(args.to) == args.remove:
        raise wrong_usage("expected either --to main, --to poison or --remove.")
    if args.lookup_ids == ["refused"]:
        if not args.remove or args.force:
            raise wrong_usage("the word refused: expected with --remove alone.")
        gone = queue.take_out_refused_rows()
        text = f"All rows of {args.queue} landed but {gone:,}; messages that they name are in poison."
        report(args.output, {"queue": args.queue, "refused": gone}, text)
        return
    place = values.one_of("--to", args.to, ("main", "poison")) if args.to else None
    ids = None if args.lookup_ids == ["all"] else values.lookup_ids(args.lookup_ids)
    taken = queue.take_out_rows(ids, place, force=args.force)
    text = f"Took the rows of {terminal.messages(taken)} of {args.queue} out; " + (f"they are in {place}." if place else "they stay settled.")
    report(args.output, {"queue": args.queue, "messages": taken, "to": place}, text)


@command("enable", QUEUE, REASON, *WHERE)
def enable(args: Namespace) -> None:
    """Let a halted queue receive again.

    Enable a disabled, stopped or faulted queue; what was sent to it while it was disabled arrives. Exit code 0: it is enabled, 2: not.
    """
    from airflow_poison.store.control import QueueState

    done = queue_of(args).enable()
    was = (
        f"; it was {done.before}" + (f": {one_line(done.reason)}" if done.reason else "") if done.before != QueueState.ENABLED else "; it was already"
    )
    report(args.output, done.to_dict(), f"Queue {done.queue} is enabled{was}.")


@command("disable", QUEUE, switch("--endpoint-only", "stop its endpoint alone: messages go on arriving"), REASON, *WHERE)
def disable(args: Namespace) -> None:
    """Set a queue to OFF.

    Disable a queue: no pass begins, and what is sent to it waits; with --endpoint-only it arrives. A pass that runs finishes. Exit code 0: done,
    2: not.
    """
    from airflow_poison.store.control import QueueState

    done = queue_of(args).disable(args.reason or "", endpoint_only=args.endpoint_only)
    halted = done.before == QueueState.DISABLED or (args.endpoint_only and done.before != QueueState.ENABLED)
    state = done.before if halted else QueueState.STOPPED if args.endpoint_only else QueueState.DISABLED
    sent = "waits until it is enabled" if state == QueueState.DISABLED else "arrives, and waits in main"
    lines = [f"Queue {done.queue} is {state}{'; it was already, and its reason stays' if halted else ''}. What is sent to it {sent}."]
    if done.receiving:
        lines.append(f"A pass still finishes {terminal.messages(done.receiving)} that it has claimed.")
    report(args.output, done.to_dict(), *lines)


@command(
    "alter",
    QUEUE,
    SET,
    option(
        "--system", "SYSTEM", "another messaging system; settings that are not given have its defaults (default: the queue's)", completes="systems"
    ),
    option("--park-group", "on|off", "whether messages wait behind earlier ones of their groups that have failed", completes=("on", "off")),
    REASON,
    *WHERE,
)
def alter(args: Namespace) -> None:
    """Change settings that are recorded in a queue.

    Change settings; they hold when an endpoint opens next. A DAG that declares a policy records its own again at its next run. Exit code 0: they
    hold, 2: nothing was changed.
    """
    from airflow_poison.rules import policy_class
    from airflow_poison.rules.described import system_named, typed_settings
    from airflow_poison.values.texts import folded

    typed = values.pairs("--set", args.set or [])
    if not typed and args.system is None and args.park_group is None:
        raise wrong_usage(
            "--set is missing: expected NAME=VALUE, --system or --park-group. 'show' lists the recorded settings, 'policies SYSTEM' all there are."
        )
    if "system" in map(folded, typed):
        raise wrong_usage("--set system=…: expected with --system SYSTEM; the settings of the old one do not stay.")
    other = None if args.system is None else system_named(args.system)
    parked = None if args.park_group is None else values.one_of("--park-group", args.park_group, ("on", "off")) == "on"
    queue = queue_of(args)
    system = policy_class(other or str(queue.reading.snapshot().control.policy["system"]))
    with noted_warnings():
        done = queue.alter(typed_settings(system, typed), other, park_group=parked)
    lines = [f"{name}: {before} -> {after}" for name, (before, after) in done.changed.items()]
    lines.append(f"They hold when {done.queue} is received next." if lines else f"{done.queue} had these settings already.")
    report(args.output, done.to_dict(), *lines)


@command(
    "restart", QUEUE, Argument(("what",), {"metavar": "WHAT", "help": "endpoint, server or broker"}, ("endpoint", "server", "broker")), REASON, *WHERE
)
def restart(args: Namespace) -> None:
    """Restart a queue's endpoint, its application server or its broker.

    Take from a queue what its system loses in a restart. Exit code 0: done, 2: it could not be done.
    """
    from airflow_poison.rules.policy import Restart

    done = queue_of(args).restart(values.one_of("WHAT", args.what, list(Restart)))
    lines = [f"Restarted the {done.what} of {done.queue}; its endpoint was {done.before} and is {done.after}."]
    if done.forgotten or done.returned:
        lines.append(f"{terminal.messages(done.forgotten)} with other counts, {terminal.messages(done.returned)} no longer blocked.")
    report(args.output, done.to_dict(), *lines)


@command("maintain", QUEUE, option("--retention", "DURATION", "how long older versions of the table can still be read (default: 7d)"), REASON, *WHERE)
def maintain(args: Namespace) -> None:
    """Keep a queue's folder small and its log short.

    Join small files, remove files that are no longer needed, shorten the log; passes go on. Exit code 0: done, 2: it could not be done.
    """
    done = queue_of(args).maintain(None if args.retention is None else values.duration("--retention", args.retention))
    lines = [
        f"Joined {done.compacted.get('files', 0):,} small files into {done.compacted.get('into', 0):,}.",
        f"Removed {sum(done.removed.values()):,} files ({terminal.size(done.freed_bytes)}); {sum(done.kept.values()):,} stay for now.",
        f"Versions from {done.oldest_version:,} on can still be read.",
    ]
    if done.relayed:
        lines.append(f"Sent {terminal.messages(done.relayed)} on that a killed pass had left.")
    if done.expired_claims:
        lines.append(f"{len(done.expired_claims)} expired claims: the next receive takes them over.")
    report(args.output, done.to_dict(), *lines)
