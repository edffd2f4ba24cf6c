"""What a command is: its declaration, which both command lines read, and how it ends: errors in one line, exit codes.

A command is declared beside the function that runs it. Airflow reads all declarations at every command of its own, so neither this module nor one
that declares commands imports passes, the desk, the store, rich or anything heavy before a command runs.

Which store and queue a command works on: from ``--store``, or from a connection of Airflow.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.hooks.poison import QueueHook
    from airflow_poison.queue import Queue, Store
    from airflow_poison.sources.source import Connection
    from airflow_poison.values.errors import InputError


def store_of(args: Namespace) -> Store:
    """Return the store of --store, or of the connection. Raises InputError, SettingError and StoreUnreachableError."""
    from airflow_poison.queue import Store
    from airflow_poison.store import MEMORY

    if args.store and args.conn_id:
        raise wrong_usage("--store and --conn-id: expected one of them.")
    if args.store is not None and (not args.store or args.store.startswith(MEMORY)):
        raise wrong_usage(f"--store {args.store!r}: expected a folder; a store in memory ends with its process.")
    return Store(hook_of(args).store() if args.store is None else args.store, connections=connection_of)


def queue_of(args: Namespace) -> Queue:
    """Return the queue QUEUE, whose methods are the verbs."""
    from airflow_poison.queue import Queue

    return Queue(store_of(args), args.queue)


@contextmanager
def making_the_queue() -> Iterator[None]:
    """Declare a queue in the block; where it is missing and no policy is given, the error says which option makes it."""
    from airflow_poison.values.errors import QueueNotFoundError

    try:
        with others_on_stderr():
            yield
    except QueueNotFoundError as error:
        raise QueueNotFoundError(f"{error} Here, --system SYSTEM makes it.") from error


def hook_of(args: Namespace) -> QueueHook:
    """Return the hook of --conn-id, with a connection that is there. Raises InputError and SettingError."""
    try:
        from airflow.sdk.exceptions import AirflowNotFoundException
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_poison.hooks.poison import QueueHook
    except ImportError as error:
        raise wrong_usage("--store is missing: without Airflow there are no connections.") from error
    hook = QueueHook(args.conn_id or QueueHook.default_conn_name)
    try:
        with others_on_stderr():
            _ = hook.settings
    except AirflowNotFoundException as error:
        raise wrong_usage(
            f"--conn-id {hook.conn_id}: no such connection is defined. Define one of type poison ('airflow connections add'), or give --store."
        ) from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error)
        raise wrong_usage(
            f"--conn-id {hook.conn_id}: Airflow's database cannot be asked for it ({cause}). Run 'airflow db migrate', or give --store."
        ) from error
    return hook


def connection_of(conn_id: str) -> Connection:
    """Return a connection of Airflow's that a source or a topic names. Raises InputError, SourceError."""
    try:
        from sqlalchemy.exc import SQLAlchemyError

        from airflow_poison.hooks.connection import found_connection

        with others_on_stderr():
            return found_connection(conn_id)
    except ImportError as error:
        raise wrong_usage(f"connection {conn_id}: without Airflow there are no connections. Give the settings themselves.") from error
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error)
        raise wrong_usage(f"connection {conn_id}: Airflow's database cannot be asked for it ({cause}). Run 'airflow db migrate'.") from error


T = TypeVar("T")


def looked_for(store: Store, names: Sequence[str], look: Callable[[Queue], Iterable[T]]) -> tuple[list[T], dict[str, str]]:
    """Return what a look finds in queues, and by name what is wrong with those that could not be looked at.

    :param names: of the queues; none: all of the store.
    """
    from airflow_poison.values.errors import PoisonError

    found, failed = list[T](), dict[str, str]()
    for name in names or store.names():
        try:
            found += look(store.queue(name))
        except PoisonError as error:
            failed[name] = str(error)
        except Exception as error:  # noqa: BLE001  (whatever a damaged table makes of a library, the other queues are looked at)
            failed[name] = f"Queue {name!r} cannot be read ({type(error).__name__}: {error}). 'check {name}' says what is wrong with it."
    return found, failed


def end_with(output: str, failed: dict[str, str], *, found: bool, nothing: str) -> None:
    """Say what went wrong. Ends with exit code 2 when something did, and with 1 when nothing was found."""
    for text in failed.values():
        say("error", text)
    if failed:
        raise SystemExit(CANNOT)
    if not found:
        end_with_no(output, nothing)


OUTPUTS = ("table", "json")
NO: Final = 1
"""The answer is no: nothing is there, the queue is halted, something is wrong."""
CANNOT: Final = 2
"""Wrong usage, or it cannot be done."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""What shells say of a process that SIGINT, or SIGPIPE, has ended."""
_WHOLE = "a change is one commit: it was made as a whole, or not at all; 'show' shows which"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument, as ``argparse`` takes it. Values are texts: the command checks them, so that an error is one line.

    :param completes: what the shell completes: words, or the name of a function of ``cli.values``.
    """

    flags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    completes: tuple[str, ...] | str = ()

    def check(self, args: Namespace) -> None:
        """Raise InputError for a text that is no UTF-8. Names of files, and bodies, may be of any bytes."""
        from airflow_poison.values.texts import is_utf8

        given = getattr(args, self.options.get("dest") or self.flags[-1].lstrip("-").replace("-", "_"), None)
        for text in given if isinstance(given, list) else [given]:
            if isinstance(text, str) and not is_utf8(text) and self.options.get("metavar") not in _OF_BYTES:
                raise wrong_usage(f"{self.flags[-1]} {text!r}: expected text in UTF-8. Nothing has changed.")


_OF_BYTES = frozenset({"FILE", "URI", "BODY"})


@dataclass(frozen=True, slots=True)
class Command:
    """A command. Called with its arguments, it runs; an error of this package ends it with one line, an interrupt without a traceback."""

    name: str
    help: str
    description: str
    arguments: tuple[Argument, ...]
    run: Callable[[Namespace], None]

    def __call__(self, args: Namespace) -> None:
        """Run it. Ends with the exit code of an error, of an interrupt, or of a reader that has gone away."""
        open_streams()
        try:
            with errors_in_one_line():
                from airflow_poison.values.clock import in_zone

                if args.output not in OUTPUTS:
                    raise wrong_usage(f"--output {args.output}: expected one of {', '.join(OUTPUTS)}.")
                for argument in self.arguments:
                    argument.check(args)
                zone = args.timezone or os.environ.get(ZONE_VARIABLE)
                with in_zone("--timezone", zone) if zone else nullcontext(), _signed(args):
                    self.run(args)
            sys.stdout.flush()
        except BrokenPipeError:  # what Python still holds of the output goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            say("interrupted", _WHOLE)
            raise SystemExit(INTERRUPTED) from None


def _signed(args: Namespace) -> AbstractContextManager[None]:
    """Record what a command with --reason does with who has called it."""
    from airflow_poison.values.events import acting
    from airflow_poison.values.machine import shell_user

    return acting(shell_user(), args.reason or "") if hasattr(args, "reason") else nullcontext()


def command(name: str, *arguments: Argument) -> Callable[[Callable[[Namespace], None]], Command]:
    """Declare a command that a function runs. What help says of it is the function's docstring: a line, and what its exit codes mean."""

    def declared(function: Callable[[Namespace], None]) -> Command:
        summary, _, description = (function.__doc__ or "").partition(".\n\n")
        return Command(name, summary, " ".join(description.split()), (*arguments, TIMEZONE), function)

    return declared


def option(flag: str, value: str, text: str, *, completes: tuple[str, ...] | str = (), default: str | None = None) -> Argument:
    """Return an option with one value."""
    return Argument((flag,), {"metavar": value, "help": text} | ({} if default is None else {"default": default}), completes)


def several(flag: str, value: str, text: str, completes: tuple[str, ...] | str = ()) -> Argument:
    """Return an option that takes several values and may be repeated."""
    return Argument((flag,), {"metavar": value, "nargs": "+", "action": "extend", "help": text}, completes)


def switch(flag: str, text: str) -> Argument:
    """Return an option without a value."""
    return Argument((flag,), {"action": "store_true", "help": text})


PLACES: Final = ("main", "retry", "poison", "postponed", "transmission")

OUTPUT: Final = Argument(
    ("-o", "--output"), {"metavar": "(table, json)", "default": "table", "help": "output format: table or json (default: table)"}, ("table", "json")
)
ZONE_VARIABLE: Final = "POISON_TIMEZONE"
TIMEZONE: Final = option(
    "--timezone", "ZONE", f"time zone of instants: Europe/Berlin, UTC, or system (default: {ZONE_VARIABLE}; in Airflow its own default, else UTC)"
)
"""What every command takes."""
STORE: Final = option("--store", "URI", "root of the store: a folder, or a file:// URI")
CONN_ID: Final = option("--conn-id", "ID", "connection that names the store (default: poison_default)")
QUEUE: Final = Argument(("queue",), {"metavar": "QUEUE", "help": "the queue"}, "queues")
QUEUES: Final = Argument(("queue",), {"metavar": "QUEUE", "nargs": "*", "help": "the queues (default: all of the store)"}, "queues")
WHERE: Final = (STORE, CONN_ID, OUTPUT)
"""What every command on queues takes."""

SET: Final = several("--set", "NAME=VALUE", "settings, in our words or the manual's: ReceiveRetryCount=2 retry_cycle_delay=1h30m", "settings")
POLICY_JSON: Final = option("--policy-json", "FILE", "settings as a JSON object; - reads standard input; --set overrides them")
SYSTEM: Final = option(
    "--system", "SYSTEM", "the messaging system whose rules the queue gets; makes the queue when it is missing", completes="systems"
)
POLICY: Final = (SYSTEM, SET, POLICY_JSON)
"""What gives a queue its policy; without any of it the recorded one rules."""


class MayBeMissing(argparse.Action):
    """One or more words that may be missing, and may stand behind options: ``*`` does not find them there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"required": False})

    def __call__(self, _parser: object, namespace: Namespace, found: object, _flag: str | None = None) -> None:
        """Keep them."""
        setattr(namespace, self.dest, found)


IDS: Final = Argument(
    ("lookup_ids",), {"metavar": "ID", "nargs": "+", "action": MayBeMissing, "help": "lookup ids of messages, or options of a selection instead"}
)
CONVERSATION: Final = Argument(("conversation",), {"metavar": "CONVERSATION", "help": "its handle at this side"}, "handles")
WAIT: Final = option("--wait", "DURATION", "how long to wait while a pass holds the conversation's group (default: not at all)", default="0s")
REASON: Final = option("--reason", "TEXT", "why; what is done is recorded with it, and with who you are")
YES: Final = switch("--yes", "do not ask")
UNMASK: Final = switch("--unmask", "with the values that the queue hides")
SAVE: Final = option("--save", "FILE", "write the whole messages into this new file first, as JSON lines; 'send --format saved' reads them")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with one line for an error of this package, or of a file: exit code 1 when it answers the question with no, else 2."""
    from airflow_poison.values import errors

    try:
        yield
    except errors.PoisonError as error:
        no = (
            errors.QueueHaltedError,
            errors.MessageNotFoundError,
            errors.ConversationNotFoundError,
            errors.DecisionOutdatedError,
            errors.PlanNotFoundError,
        )
        say("error", str(error))
        raise SystemExit(NO if isinstance(error, no) else CANNOT) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        say("error", f"{error.filename or 'the system'}: {error.strerror or error}.")
        raise SystemExit(CANNOT) from None


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """Say warnings about settings, each once, and return them; they are complete when the block has ended."""
    from airflow_poison.values.errors import ConfigurationHint, ConfigurationWarning

    shown: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigurationWarning)
        yield shown
    for warning in caught:
        text = str(warning.message)
        if issubclass(warning.category, ConfigurationWarning) and text not in shown:
            shown.append(text)
            say("hint" if issubclass(warning.category, ConfigurationHint) else "warning", text)


@contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send what others print or log meanwhile to standard error: handlers, Airflow, the JVM. Standard output has results and nothing else."""
    results, is_real = sys.stdout, sys.stdout is sys.__stdout__
    results.flush()
    with ExitStack() as restored:
        if is_real:
            kept = os.dup(1)
            restored.callback(os.close, kept)
            restored.callback(os.dup2, kept, 1)
            restored.callback(results.flush)
            os.dup2(2, 1)
        restored.enter_context(redirect_stdout(sys.stderr))
        yield


def open_streams() -> None:
    """Have a standard stream that the caller has closed (``>&-``) lead nowhere. Its number would become the number of a file that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  (open as long as the process)


def say(kind: str, text: str) -> None:
    """Write one line to standard error."""
    from airflow_poison.values.texts import visible

    sys.stderr.write(f"{kind}: {visible(' '.join(text.split()))}\n")


def end_with_no(output: str, text: str) -> NoReturn:
    """End with exit code 1, as nothing is there; who reads JSON has seen it."""
    if output != "json":
        say("nothing", text)
    raise SystemExit(NO)


def wrong_usage(text: str) -> InputError:
    """Return the error of arguments that are wrong."""
    from airflow_poison.values.errors import InputError

    return InputError(text)
