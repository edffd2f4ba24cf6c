"""``airflow poison receive``: one receive pass over a queue."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_poison.cli import values
from airflow_poison.cli.command import (
    INTERRUPTED,
    NO,
    POLICY,
    QUEUE,
    WHERE,
    Argument,
    command,
    hook_of,
    making_the_queue,
    option,
    others_on_stderr,
    queue_of,
    say,
    several,
    switch,
    wrong_usage,
)
from airflow_poison.cli.send import source_of
from airflow_poison.cli.terminal import ProgressLine, instant, messages, report
from airflow_poison.cli.values import given_policy

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.dialogs.services import Service
    from airflow_poison.passes.declaration import Receive
    from airflow_poison.passes.engines import Engine
    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy
    from airflow_poison.store.queue_table import QueueTable


_ENGINES = ("spark", "local", "auto")
_PATIENCE = 15.0
"""How many seconds Spark has to cancel its job when the pass is interrupted."""
_MOST = {"spark": 10_000_000, "auto": 10_000_000, "local": 100_000}
"""How many messages a pass takes by default: a local one holds them all in memory."""
_WRITTEN_DOWN = "What was delivered is written down and is not delivered again; a message that was alone with its handler counts one rollback."


@command(
    "receive",
    QUEUE,
    option("--handler", "MODULE:FUNCTION", "called with each message; raises to roll back"),
    option("--transform", "MODULE:FUNCTION", "instead of a handler: called with a Spark DataFrame of messages, returns a DataFrame"),
    option(
        "--source",
        "SOURCE",
        "first give --transform what is new in a source, where it is, and only rows that fail become messages: a pattern of files, or MODULE:NAME",
    ),
    switch("--mixes-rows", "what --transform makes of a message depends on others: all or nothing"),
    *POLICY,
    several("--services", "MODULE:NAME", "services that receive from the queue, declared on it first: each a Service, or a list or tuple of them"),
    option(
        "--engine",
        "ENGINE",
        "spark; local: in this process, one message after the other, without a JVM; auto: local for small passes (default: as the connection says)",
        completes=_ENGINES,
    ),
    option("--spark", "MASTER", "where Spark runs (default: as the connection says, else local[*])"),
    option("--max-messages", "N", "how many messages the pass takes at most (default: 10000000; local: 100000)"),
    option(
        "--isolation",
        "WAY",
        "process: handlers run in supervised child processes; none: inline (default: process)",
        default="process",
        completes=("process", "none"),
    ),
    option("--batch", "KIND", "arrow, pandas or polars: the handler is called with frames of many messages", completes=("arrow", "pandas", "polars")),
    option("--batch-size", "N", "how many messages a frame has at most (default: 10000)"),
    option("--schema", "DDL", "the columns of the bodies, JSON objects, for example 'carrier string, flight int'"),
    Argument(
        ("--outage",),
        {
            "metavar": "NAME=VALUE",
            "nargs": "*",
            "help": "take failures alike for an outage, no poison: share=0.5 at_least=100 probe=20 every=5m",
        },
    ),
    several("--spans", "QUEUE", "other queues that the handler's transaction receives from, too: five rollbacks of one disable all (Service Broker)"),
    several("--unprocessable", "MODULE:TYPE", "exception types that go to the final disposition at once"),
    several("--output-table", "[NAME=]PATH", "Delta tables where the rows land that the handler returns; names where there are several"),
    several("--output-schema", "[NAME=]DDL", "the columns of an output, such as 'id bigint' (default: the table's, or the first rows')"),
    several("--output-keys", "[NAME=]COLUMNS", "rows replace rows of the output with the same values in these columns, separated by commas"),
    switch("--evolve", "add columns to outputs that do not have them"),
    switch("--provenance", "let rows say where they come from: queue, lookup id, pass and time"),
    several("--py-files", "FILE", ".py, .zip, .egg and .whl files that Spark's executors import handlers from, and what those import"),
    several("--option", "NAME=VALUE", "other settings of the receive by their names in Python (ReceiveOptions), such as park_group=on"),
    option("--handler-version", "TEXT", "of the handler: a new one starts the redrive that 'rules --redrive-on-new-handler' records"),
    option("--run-key", "KEY", "names the run: the next run with the same key finishes at once what this one leaves when it is killed"),
    *WHERE,
)
def receive(args: Namespace) -> None:
    """Hand a queue's messages to a handler, once.

    Run one receive pass. Exit code 0: the pass has ended, 1: the queue is halted, 2: it could not be received; 130: interrupted, run it again.
    """
    from airflow_poison.passes.runs import account, run_key

    values.named("--run-key", args.run_key)
    progress = ProgressLine()
    receiving = _declared_pass(args, progress.report)
    table = receiving.table
    named = args.run_key if args.run_key is not None else uuid.uuid4().hex[:12]
    key = run_key(table.uri, "receive", named)
    try:
        with others_on_stderr():
            result = receiving.run(key)
    except KeyboardInterrupt:
        progress.end()
        _stop_spark()
        say("interrupted", _left(table, key, named))
        raise SystemExit(INTERRUPTED) from None
    finally:
        progress.end()
    report(args.output, result.to_dict(), *account(result))
    if result.halted is not None:
        say("halted", _halted(result, receiving.policy))
        raise SystemExit(NO)


def _declared_pass(args: Namespace, progress: Callable[[str], None]) -> ReceivePass:
    """Return the pass that options declare, over the queue, which is made when it is missing. Raises InputError."""
    engine = values.one_of("--engine", args.engine or "spark", _ENGINES)
    most = _MOST[engine] if args.max_messages is None else values.whole("--max-messages", args.max_messages, 1)
    if args.spark is not None and engine == "local":
        raise wrong_usage("--spark: expected with --engine spark or auto.")
    files = _import_from_here(args.py_files or ())
    policy = given_policy(args)
    if args.store is None:
        hook_of(args).import_here(files)
    settings = _settings(args, policy, most)
    with making_the_queue():
        return queue_of(args).receive_pass(
            settings,
            _engine(args, engine, files, progress),
            run="the command line",
            redriven=lambda view: progress(
                f"redrive for a new handler, plan {view.plan}: {view.state}, {view.done:,} of {messages(view.messages)} put back"
            ),
            small_pass=_small_pass(args),
            progress=progress,
        )


def _settings(args: Namespace, policy: Policy | None, most: int) -> Receive:
    """Return the settings that options give. Raises InputError, SettingError and HandlerNotFoundError."""
    from airflow_poison.passes.declaration import Receive
    from airflow_poison.values.errors import SettingError

    _check_handler(args)
    tables, schema, columns = (_by_output(name, getattr(args, name) or ()) for name in ("output_table", "output_schema", "output_keys"))
    keys: object = columns and (columns.split(",") if isinstance(columns, str) else {name: each.split(",") for name, each in columns.items()})
    given: dict[str, Any] = {
        "transform": args.transform,
        "source": None if args.source is None else source_of(args),
        "mixes_rows": args.mixes_rows,
        "services": given_services(args.services or ()),
        "max_messages": most,
        "isolation": args.isolation,
        "unprocessable": args.unprocessable or (),
        "output": tables,
        "output_schema": schema,
        "output_keys": keys,
        "evolve": args.evolve,
        "provenance": args.provenance,
        "batch": args.batch,
        "schema": args.schema,
        "outage": values.outage(args.outage),
        "handler_version": args.handler_version,
        "spans": args.spans or (),
    }
    if args.batch_size is not None:
        given["batch_size"] = values.whole("--batch-size", args.batch_size, 1)
    try:
        return Receive.of(args.queue, handler=args.handler, policy=policy, **{**given, **_other_options(args.option or (), {*given, "batch_size"})})
    except SettingError as error:
        if error.setting not in {"output", "output_schema", "output_keys", "evolve", "provenance"}:
            raise
        name = "output-table" if error.setting == "output" else error.setting.replace("_", "-")
        raise wrong_usage(f"--{name} {error.value!r} is not allowed; allowed: {error.allowed}.") from error


def _other_options(texts: Sequence[str], own: Collection[str]) -> dict[str, object]:
    """Return the values of ``--option``, by their types in ``ReceiveOptions``. Raises InputError.

    :param own: settings that have an option of their own.
    """
    from airflow_poison.passes.declaration import ReceiveOptions

    kinds = {name: getattr(kind, "__forward_arg__", str(kind)).partition(" |")[0] for name, kind in ReceiveOptions.__annotations__.items()}
    found: dict[str, object] = {}
    for name, text in (values.pairs("--option", texts) if texts else {}).items():
        kind = kinds.get(name)
        if name in own:
            raise wrong_usage(f"--option {name}={text}: {name} has an option of its own, see 'receive --help'.")
        if kind == "bool":
            found[name] = values.one_of(f"--option {name}", text, ("on", "off")) == "on"
        elif kind == "int":
            found[name] = values.whole(f"--option {name}", text, 1)
        elif kind == "str":
            found[name] = text
        elif kind == "Sequence[str]":
            found[name] = text.split(",")
        else:
            simple = ", ".join(each for each in kinds if each not in own and kinds[each] in {"bool", "str", "int", "Sequence[str]"})
            raise wrong_usage(f"--option {name}={text}: expected one of {simple}.")
    return found


def _small_pass(args: Namespace) -> int:
    """Return how many messages a pass delivers without Spark; by default as the connection says."""
    from airflow_poison.hooks.connection import SMALL_PASS

    if args.engine is None and args.store is None and args.spark is None:
        return hook_of(args).settings.small_pass
    return SMALL_PASS if args.engine == "auto" else 0


def _by_output(option: str, given: Sequence[str]) -> str | dict[str, str] | None:
    """Return one value, or values by name."""
    named = [text.partition("=") for text in given]
    if len(given) == 1 and not (named[0][1] and named[0][0].isidentifier()):
        return given[0]
    if other := next((text for text, (name, sign, _) in zip(given, named, strict=True) if not (sign and name.isidentifier())), None):
        raise wrong_usage(f"--{option.replace('_', '-')} {other}: where there are several, expected NAME=VALUE, for example landed=/lake/landed.")
    return {name: value for name, _, value in named} or None


def _check_handler(args: Namespace) -> None:
    """Refuse options that do not go with a handler, or with a transformation. Raises InputError."""
    from airflow_poison.delivery.handlers import POISON_COLUMN

    if (args.handler is None) == (args.transform is None):
        raise wrong_usage("--handler: expected MODULE:FUNCTION, or --transform MODULE:FUNCTION, and not both.")
    if args.transform is None:
        for name in ("source", "mixes_rows"):
            if getattr(args, name):
                raise wrong_usage(f"--{name.replace('_', '-')}: expected with --transform.")
        if args.batch is None and args.batch_size is not None:
            raise wrong_usage("--batch-size: expected with --batch.")
        return
    for name, given in (("engine local", args.engine == "local"), ("isolation none", args.isolation == "none")):
        if given:
            raise wrong_usage(f"--{name}: expected with --handler; a transformation runs on Spark.")
    if args.unprocessable:
        raise wrong_usage(f"--unprocessable: expected with --handler; a transformation names poison in its column {POISON_COLUMN}.")
    if args.batch is not None or args.batch_size is not None:
        raise wrong_usage("--batch: expected with --handler; a transformation gets a DataFrame.")


def _import_from_here(given: Sequence[str]) -> Sequence[str]:
    """Let handlers be found in the current folder, as ``python -m`` does, and in files that are shipped; return the whole paths of these."""
    values.importable_here()
    if not given:
        return ()
    from airflow_poison.spark.executors import checked_files, import_here

    files = checked_files(given)
    import_here(files)
    return files


def _engine(args: Namespace, engine: str, files: Sequence[str], progress: Callable[[str], None]) -> Callable[[], Engine]:
    """Return what makes the engine.

    :param files: what executors import from, besides what the connection says.
    """

    def spark() -> Engine:
        if args.store is None and args.spark is None:
            return hook_of(args).engine(progress, files)
        from airflow_poison.spark.engine import SparkEngine
        from airflow_poison.spark.session import get_session

        made = SparkEngine(get_session(args.spark) if args.spark else get_session(), progress)
        made.ship(files)
        return made

    from airflow_poison.passes.engines import SupervisedEngine

    return SupervisedEngine if engine == "local" else partial(SupervisedEngine, spark, patience=_PATIENCE)


def _stop_spark() -> None:
    """End this process's Spark, if it has one: what its JVM has to say of the killed job comes before our own last line."""
    if "pyspark" not in sys.modules:
        return
    from airflow_poison.spark.session import running_session

    with suppress(Exception):  # py4j raises many kinds, and the JVM ends with this process
        if (session := running_session()) is not None:
            session.stop()


def _left(table: QueueTable, key: str, named: str) -> str:
    """Say what an interrupted pass leaves behind, and how it goes on."""
    mine = [claim for claim in table.snapshot().claims if claim.key.startswith(f"{key}-")]
    if not mine:
        return f"nothing of queue {table.name!r} is claimed by this pass: its messages are settled, or where they were."
    claimed, until = messages(sum(claim.messages for claim in mine)), max(claim.expires_at for claim in mine)
    if until <= values.now():
        return f"the claim of {claimed} of queue {table.name!r} is given up: any receive goes on with them at once. {_WRITTEN_DOWN}"
    return (
        f"{claimed} of queue {table.name!r} stay claimed, for what works on them had not ended yet. {_WRITTEN_DOWN} "
        f"Go on at once with --run-key {named}, or from {instant(until)} on with any receive."
    )


def _halted(result: ReceiveResult, policy: Policy) -> str:
    """Say which message halted the queue, and which commands go on."""
    from airflow_poison.passes.halts import what_halted
    from airflow_poison.rules.queue_disabling import Inspection

    mode = "" if getattr(policy, "inspection", Inspection.BROWSE) == Inspection.BROWSE else " --mode browse"  # others need an enabled queue
    halt = result.halted
    assert halt is not None
    queue, partner = result.queue, halt["details"].get("partner")
    removes = f"ends its conversation with an error for service {partner!r}" if partner else "removes it"
    recover = f"'recover {queue}' {removes} and enables the queue"
    return f"{what_halted(halt, queue)} 'inspect {queue}{mode}' shows it, {recover}, 'enable {queue}' keeps it."


def given_services(names: Sequence[str]) -> tuple[Service, ...]:
    """Return the services of ``MODULE:NAME`` texts. Raises InputError."""
    found: dict[str, Service] = {}
    for name in names:
        for service in _services(name):
            if service.name in found:
                raise wrong_usage(f"--services: service {service.name} is given twice.")
            found[service.name] = service
    return tuple(found.values())


def _services(name: str) -> Sequence[Service]:
    from airflow_poison.dialogs.services import Service

    thing = values.imported("--services", name, "shop.contracts:warehouse")
    if isinstance(thing, Service):
        return [thing]
    kind = type(thing).__name__
    if isinstance(thing, list | tuple):
        other = next((type(each).__name__ for each in thing if not isinstance(each, Service)), None)
        if thing and other is None:
            return thing
        kind = f"an empty {kind}" if other is None else f"a {kind} with {other}"
    raise wrong_usage(f"--services {name}: expected a Service, or a list or tuple of them, not {kind}.")
