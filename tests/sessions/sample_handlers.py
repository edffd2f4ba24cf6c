"""Handlers for the tests of server sessions; the body of a message says what to do."""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_poison.values.failures import Postpone, Unprocessable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from airflow_poison.delivery.handler_wrappers import Session
    from airflow_poison.values.message import Message


class UnprintableError(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lambda")
        self.function = lambda: None

    def __reduce__(self) -> NoReturn:
        raise TypeError("never pickled")


def nothing(message: Message) -> None:
    """Return."""


def parse(message: Message) -> None:
    json.loads(message.body)


def script(message: Message) -> None:  # noqa: C901, PLR0912, PLR0915  (one branch a word)
    """Do what the body says."""
    word, _, argument = message.text.partition(" ")
    match word:
        case "raise":
            raise ValueError(f"bad {message.lookup_id}")
        case "raise-until":
            if message.abort_count < int(argument):
                raise ValueError(f"not yet: {message.abort_count}")
        case "crash-until":
            if message.abort_count < int(argument):
                os._exit(3)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            time.sleep(3600)
        case "print":
            print(f"printed by {message.lookup_id}")  # noqa: T201
        case "log":
            logging.getLogger("shop").error("logged by %d", message.lookup_id)
        case "flood":
            sys.stdout.write("x" * 99 + "\n" * int(argument))
            for _ in range(int(argument)):
                sys.stdout.write("y" * 1_000_000 + "\n")
        case "os.write":
            os.write(1, b"raw\n")
            time.sleep(0.05)
        case "huge":
            raise ValueError("z" * 50_000_000)
        case "unprintable":
            raise UnprintableError
        case "unpicklable":
            raise UnpicklableError
        case "surrogate":
            raise ValueError("bad \udc80 text")
        case "unprocessable":
            raise Unprocessable("never")
        case "lookup":
            raise LookupError("unknown customer")
        case "postpone":
            from datetime import timedelta

            raise Postpone(timedelta(minutes=5), "later")
        case "interrupt":
            raise KeyboardInterrupt
        case "fork-return":
            os.fork()
        case "fork-exit":
            if os.fork() == 0:
                sys.exit(5)
        case "fork-stay":
            if os.fork() == 0:
                signal.pause()
        case "subprocess":
            subprocess.Popen(["sleep", "3600"])
        case "count":
            with Path(argument).open("a") as file:
                file.write(f"{message.lookup_id} {message.abort_count}\n")
        case _:
            pass


def take_all(session: Session) -> None:
    for item in session:
        if item.body == b"bad":
            raise ValueError("bad item")


def take_one(session: Session) -> None:
    next(iter(session))


not_callable = 7


async def coroutine(message: Message) -> None:
    pass


def _touch(message: Message) -> None:
    Path(message.text).touch()


def yields(message: Message) -> Iterator[int]:
    _touch(message)
    yield 1


async def yields_later(message: Message) -> AsyncIterator[int]:
    _touch(message)
    yield 1


def passed_on(function: Callable[[Message], object]) -> Callable[[Message], object]:
    """A decorator as people write it: plain itself, whatever the function is."""

    @functools.wraps(function)
    def outer(message: Message) -> object:
        return function(message)

    return outer


def used_up(message: Message) -> None:
    for _ in yields(message):
        pass


class RunsLater:
    async def __call__(self, message: Message) -> None:
        _touch(message)

    async def method(self, message: Message) -> None:
        await self(message)


class Yields:
    def __call__(self, message: Message) -> Iterator[int]:
        yield len(message.text)


class Awaitable:
    """Something to be awaited that is no coroutine, as a future is."""

    def __init__(self, message: Message) -> None:
        self.message = message

    def __await__(self) -> Iterator[None]:
        _touch(self.message)
        yield


async def touch(message: Message) -> None:
    _touch(message)


def returns_coroutine(message: Message) -> object:
    return touch(message)


def returns_awaitable(message: Message) -> object:
    return Awaitable(message)


returns_generator = passed_on(yields)
returns_async_generator = passed_on(yields_later)
runs_it = passed_on(used_up)
runs_later, yields_as_object = RunsLater(), Yields()
later_in_part = functools.partial(touch)
object_in_part = functools.partial(RunsLater())
method_later = runs_later.method


def two_arguments(message: Message, other: object) -> None:
    pass
