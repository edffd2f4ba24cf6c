"""A worker for the tests to kill together with its child, whose handler prints in every way; the body of a message says which."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.rules.service_broker import ServiceBroker
from tests.given.messages import batch_of
from tests.sessions.conftest import opened_session, policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.values.message import Message

THREADS, LINES = 8, 500
MEGABYTES = 64


def say(text: str) -> None:
    sys.stderr.write(text)


def in_pieces() -> None:
    for number in range(10_000):
        say(f"{number}\n")


def in_threads() -> None:
    def work(name: int) -> None:
        for number in range(LINES):
            sys.stdout.write(f"<{name} {number:03}>\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("the threads have ended\n")


def flood() -> None:
    line = "x" * (1 << 20)
    for _ in range(MEGABYTES):
        print(line)  # noqa: T201
    say("the end\n")


def fork_and_print() -> None:
    """Print without end in a fork, also while other messages are delivered."""
    if os.fork() == 0:
        while True:
            say("the fork\n")
    say("the handler\n")


def fork_while_a_thread_prints() -> None:
    """Fork while a lock of the streams is held by a thread that the fork does not have."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            say("the thread\n")

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(50):
        child = os.fork()
        if child == 0:
            say("the fork\n")
            os._exit(0)
        os.waitpid(child, 0)
    stopped.set()
    thread.join()
    say("\nthe handler\n")


def print_in_a_signal_handler() -> None:
    signal.signal(signal.SIGALRM, lambda *_: say("!"))
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    for _ in range(2_000):
        say(".")
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("\nthe end\n")


def spoil(what: object) -> None:
    sys.stdout = sys.stderr = what
    logging.getLogger("shop").warning("still logged")


def close() -> None:
    sys.stderr.close()
    sys.stdout.close()
    logging.getLogger("shop").warning("still logged")


def no_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    say("no file may grow\n")


def exhausted() -> None:
    try:
        exhausted()
    except RecursionError:
        say("at the bottom\n")
        raise


def bottom() -> None:
    try:
        exhausted()
    except RecursionError:
        say("back again\n")


SPEECHES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "line": lambda: say("a line\n"),
    "half": lambda: say("half a li"),
    "stdout": lambda: print("printed"),  # noqa: T201
    "log": lambda: logging.getLogger("shop").error("logged"),
    "warning": lambda: warnings.warn("warned", UserWarning, stacklevel=1),
    "umlauts": lambda: say("x" + "ü" * 20_000),
    "long": lambda: say("".join(f"{number}\n" for number in range(100_000))),
    "pieces": in_pieces,
    "control": lambda: say("\x1b]0;owned\x07\x1b[2J\x9b2J\x7f\r\n\ttab \\ é\x00"),
    "threads": in_threads,
    "flood": flood,
    "fork": fork_and_print,
    "fork-in-thread": fork_while_a_thread_prints,
    "signal": print_in_a_signal_handler,
    "closed": close,
    "none": partial(spoil, None),
    "odd": partial(spoil, object()),
    "no-files": no_files,
    "recursion": bottom,
}
"""What a handler may do before it returns or dies, by name."""


def speak(message: Message) -> None:
    """Body: ``<file> <speech> [die|raise-then-die]``; who dies kills the worker whose pid is in the file, and its own process."""
    path, speech, *then = message.text.split()
    if then != ["raise-then-die"] or message.abort_count == 0:
        SPEECHES[speech]()
    if then == ["raise-then-die"] and message.abort_count == 0:
        raise ValueError("not yet")
    if then:
        os.kill(int(Path(path).read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def die_alone(message: Message) -> None:
    """Body: ``<speech> [exit]``."""
    speech, *then = message.text.split()
    SPEECHES[speech]()
    if then:
        os._exit(3)


def main(folder: Path, isolation: str, kind: str, words: list[str]) -> None:
    """Deliver."""
    pid = folder / "pid"
    pid.write_text(str(os.getpid()))
    timeout = timedelta(seconds=60)
    with opened_session(
        policy=ServiceBroker(transaction_timeout=timeout) if kind == "calls" else policy(transaction_timeout=timeout),
        handler="tests.sessions.speaking_worker:speak",
        journal_folder=folder / "journal",
        isolation=isolation,
    ) as session:
        session.deliver(batch_of([f"{pid} {word.replace('+', ' ')}" for word in words], first_id=100))
