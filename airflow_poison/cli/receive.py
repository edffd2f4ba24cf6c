"""``airflow poison receive``: one receive pass over a queue."""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_poison.cli import values
from airflow_poison.cli.given_policy import given_policy
from airflow_poison.cli.given_services import given_services
from airflow_poison.cli.humanly import messages
from airflow_poison.cli.looking import write_json
from airflow_poison.cli.screen import line, screen
from airflow_poison.cli.stores import hook_of, opened_queue, opened_store
from airflow_poison.cli.telling import INTERRUPTED, NO, check_output, command, others_on_stderr, say
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import InputError
from airflow_poison.core.passes.runs import run_key
from airflow_poison.core.spark.executors import checked_files, import_here

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.passes.runs import ReceiveResult
    from airflow_poison.core.policies.policy import Policy
    from airflow_poison.core.store.queue_table import QueueTable

_ENGINES = ("spark", "local")
_PATIENCE = 15.0
"""How many seconds Spark has to cancel its job when the pass is interrupted."""
_MOST = {"spark": 10_000_000, "local": 100_000}
"""How many messages a pass takes when nobody says: a local one holds them all in memory."""
_WRITTEN_DOWN = "What was delivered is written down and is not delivered again; a message that was alone with its handler counts one rollback."


@command
def receive(args: Namespace) -> None:
    """Receive, and print the account. Ends with exit code 1 when the queue is halted, before or by this pass."""
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.passes.services import declare_services
    from airflow_poison.core.policies import policy_from_dict

    output, engine = check_output(args.output), values.one_of("--engine", args.engine, _ENGINES)
    values.named("--run-key", args.run_key)
    most = _MOST[engine] if args.max_messages is None else values.whole("--max-messages", args.max_messages, 1)
    if args.spark is not None and engine != "spark":
        raise InputError("--spark: expected with --engine spark.")
    files = checked_files(args.py_files or ())
    _import_from_here(files)
    policy = given_policy(args)
    if args.store is None:
        hook_of(args).import_here(files)
    services = given_services(args.services or ())
    table = opened_queue(args, policy)
    if services:
        declare_services(opened_store(args), table, services, SystemClock())
    progress = Progress()
    receiving = ReceivePass(
        table=table,
        policy=policy or policy_from_dict(table.snapshot().control.policy),
        handler=args.handler,
        engine=_engine(args, engine, files, progress.tell),
        clock=SystemClock(),
        max_messages=most,
        isolation=args.isolation,
        unprocessable=tuple(args.unprocessable or ()),
        progress=progress.tell,
        store=opened_store(args),
    )
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
    _tell(result, output, receiving.policy)


def _tell(result: ReceiveResult, output: str, policy: Policy) -> None:
    """Print what a pass did. Ends with exit code 1 when the queue is halted."""
    if output == "json":
        write_json(result.to_dict())
    else:
        _print(result)
    if result.halted is not None:
        say("halted", _halted(result, policy))
        raise SystemExit(NO)


def _import_from_here(files: Sequence[str]) -> None:
    """Let handlers of the current folder be found, as ``python -m`` does, and those of files that are shipped."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    import_here(files)


def _engine(args: Namespace, engine: str, files: Sequence[str], progress: Callable[[str], None]) -> Callable[[], Engine]:
    """Return what makes the engine.

    :param files: what executors import from, besides what the connection says.
    """

    def spark() -> Engine:
        if args.store is None and args.spark is None:
            return hook_of(args).engine(progress, files)
        from airflow_poison.core.spark.engine import SparkEngine
        from airflow_poison.core.spark.session import get_session

        made = SparkEngine(get_session(args.spark) if args.spark else get_session(), progress)
        made.ship(files)
        return made

    from airflow_poison.core.passes.engine import SupervisedEngine

    return SupervisedEngine if engine == "local" else partial(SupervisedEngine, spark, patience=_PATIENCE)


def _stop_spark() -> None:
    """End this process's Spark, if it has one: what its JVM has to say of the killed job comes before our own last line."""
    if "pyspark" not in sys.modules:
        return
    from airflow_poison.core.spark.session import running_session

    with suppress(Exception):  # py4j raises many kinds, and the JVM ends with this process
        if (session := running_session()) is not None:
            session.stop()


def _left(table: QueueTable, key: str, named: str) -> str:
    """Say what an interrupted pass leaves behind, and how it goes on."""
    mine = [claim for claim in table.snapshot().claims if claim.key.startswith(f"{key}-")]
    if not mine:
        return f"nothing of queue {table.name!r} is claimed by this pass: its messages are settled, or where they were."
    claimed, until = messages(sum(claim.messages for claim in mine)), max(claim.expires_at for claim in mine)
    if until <= SystemClock().now():
        return f"the claim of {claimed} of queue {table.name!r} is given up: any receive goes on with them at once. {_WRITTEN_DOWN}"
    return (
        f"{claimed} of queue {table.name!r} stay claimed, for what works on them had not ended yet. {_WRITTEN_DOWN} "
        f"Go on at once with --run-key {named}, or from {until:%H:%M:%S} UTC on with any receive."
    )


def _print(result: ReceiveResult) -> None:
    from airflow_poison.operators.account import account

    out = screen()
    for each in account(result):
        line(out, each)


def _halted(result: ReceiveResult, policy: Policy) -> str:
    """Say which message halted the queue, and which commands go on."""
    from airflow_poison.core.passes.halts import what_halted
    from airflow_poison.core.policies.recovery import Inspection

    mode = "" if getattr(policy, "inspection", Inspection.BROWSE) == Inspection.BROWSE else " --mode browse"  # others need an enabled queue
    halt = result.halted
    assert halt is not None
    what = what_halted(halt, result.queue)
    queue = result.queue
    return f"{what} 'inspect {queue}{mode}' shows it, 'recover {queue}' removes it and enables the queue, 'enable {queue}' keeps it."


class Progress:
    """Lines about a pass under way, on standard error: on a terminal one that is written over."""

    def __init__(self) -> None:
        self._written = False

    def tell(self, text: str) -> None:
        """Show a line."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            self._written = True
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away; what comes next begins at the left."""
        if self._written:
            sys.stderr.write("\r\x1b[K")
            self._written = False
