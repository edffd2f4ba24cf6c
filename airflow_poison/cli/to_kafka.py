"""``airflow poison send-to-kafka``: messages leave a queue for a Kafka topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.acting import ask, check_asking
from airflow_poison.cli.command import IDS, INTERRUPTED, NO, QUEUE, REASON, WHERE, YES, Argument, command, option, say, several, switch, wrong_usage
from airflow_poison.cli.selecting import SELECTION, is_selected, selection
from airflow_poison.cli.stores import connection_of, opened_queue, system_clock
from airflow_poison.cli.terminal import messages, tell

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.selection import Selection
    from airflow_poison.passes.to_kafka import SendToKafkaResult
    from airflow_poison.sources.kafka import Kafka
    from airflow_poison.store.queue_table import QueueTable

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
        check_asking(args, "'find' shows the messages of a selection.")
    table = opened_queue(args)
    number = 0 if chosen is None else _number(table, chosen)
    if number:
        ask(args, f"Send {messages(number)} of {table.name} to topic {kafka.topic}, for good? ")
    try:
        done = _sent(args, table, kafka, chosen)
    except KeyboardInterrupt:
        again = f"'send-to-kafka {table.name} --topic {kafka.topic}' sends those that are on their way"
        say("interrupted", f"each message is in the queue, on its way or in the topic; {again}.")
        raise SystemExit(INTERRUPTED) from None
    told = [f"Sent {messages(done.sent)} of {done.queue} to topic {done.topic}."]
    if done.finished:
        told.append(f"An earlier call had put {messages(done.finished)} there; the outbox has them no more.")
    tell(args.output, done.to_dict(), *told)
    if chosen is not None and not number:
        say("nothing", f"no message of {table.name} is selected.")
    if done.returned:
        say("refused", f"the topic does not take {messages(done.returned)}. They are in poison of {table.name}, with the reason.")
    if done.left:
        say("waiting", f"{messages(done.left)} stay: passes have claimed them, or they were changed meanwhile.")
    if done.left or done.returned or (chosen is not None and not number):
        raise SystemExit(NO)


def _take_back(args: Namespace, kafka: Kafka, chosen: Selection | list[int] | None) -> None:
    if chosen is not None:
        raise wrong_usage("--take-back: expected no lookup ids and no options of a selection; all that waits for the topic is taken back.")
    from airflow_poison.passes.to_kafka import take_back_from_kafka

    done = take_back_from_kafka(opened_queue(args), kafka, system_clock())
    told = [f"Took {messages(done.returned)} of {done.queue} back into poison."]
    if done.finished:
        told.append(f"{messages(done.finished)} had been put into topic {done.topic}; the outbox has them no more.")
    tell(args.output, done.to_dict(), *told)


def _kafka(args: Namespace) -> Kafka:
    """Return the topic, connected. Raises InputError, SettingError, SourceError."""
    from airflow_poison.sources.kafka import Kafka

    if args.topic is None:
        raise wrong_usage("--topic is missing: expected the name of a topic.")
    values.one_of("--key", args.key, _KEYS)
    if args.set and args.connection is not None:
        raise wrong_usage("--set and --connection: expected one of them.")
    settings = values.pairs("--set", args.set) if args.set else args.connection or "kafka_default"
    return Kafka(args.topic, settings).connected(connection_of)


def _chosen(args: Namespace) -> Selection | list[int] | None:
    """Return which messages are meant; None: those alone that are on their way. Raises InputError."""
    if not is_selected(args):
        return values.lookup_ids(args.lookup_ids) if args.lookup_ids else None
    if args.lookup_ids:
        raise wrong_usage(f"{' '.join(args.lookup_ids)}: expected lookup ids, or options of a selection, and not both.")
    return selection(args)


def _number(table: QueueTable, chosen: Selection | list[int]) -> int:
    from airflow_poison.desk.to_kafka import selected

    return len(set(chosen)) if isinstance(chosen, list) else selected(table, chosen).number


def _sent(args: Namespace, table: QueueTable, kafka: Kafka, chosen: Selection | list[int] | None) -> SendToKafkaResult:
    from airflow_poison.desk.to_kafka import send_selected
    from airflow_poison.passes.to_kafka import send_to_kafka as verb

    if chosen is None or isinstance(chosen, list):
        return verb(table, chosen or (), kafka, system_clock(), key=args.key)
    return send_selected(table, chosen, kafka, system_clock(), key=args.key)
