"""Handlers that leave their process, or what they raise, in a state that nobody expects; the body of a message says which."""

from __future__ import annotations

import ctypes
import locale
import os
import resource
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_poison.values.failures import Postpone

if TYPE_CHECKING:
    from airflow_poison.values.message import Message

DEEP = 100_000
"""Frames of the deepest stack."""


class _NamelessType(type):
    def __getattribute__(cls, name: str) -> object:
        if name in {"__module__", "__qualname__", "__name__"}:
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class NamelessError(Exception, metaclass=_NamelessType):
    pass


class Liar(str):
    """A text whose methods are of no use."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, _key: object) -> NoReturn:
        raise RuntimeError("no part")

    def encode(self, *_: object) -> NoReturn:
        raise RuntimeError("no bytes")

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("never pickled")

    __reduce_ex__ = __reduce__  # type: ignore[assignment]


class LyingTextError(Exception):
    def __str__(self) -> str:
        return Liar("a text of a type of its own")


class ClassError(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, _value: object) -> None:
        raise RuntimeError("no class")


class CauseError(Exception):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("no cause")

    @__cause__.setter
    def __cause__(self, _value: object) -> None:
        raise RuntimeError("no cause")


class DelayError(Postpone):
    """Gives a message back, for a time that is none."""

    def __init__(self, delay: object) -> None:
        super().__init__()
        self.delay = delay  # type: ignore[assignment]


class RaisingDelayError(Postpone):
    @property
    def delay(self) -> timedelta:
        raise RuntimeError("no delay")

    @delay.setter
    def delay(self, _value: object) -> None:
        pass


def _cycle() -> Exception:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _caused(cause: Exception) -> Exception:
    error = KeyError("key")
    error.__cause__ = cause
    return error


def _type(name: str, **cells: object) -> Exception:
    made: type[Exception] = type(name, (Exception,), cells)
    return made("made")


def recurse(depth: int) -> None:
    if not depth:
        raise ValueError("at the bottom")
    recurse(depth - 1)


ERRORS: dict[str, Any] = {
    "nameless": NamelessError,
    "lying-text": LyingTextError,
    "no-class": ClassError,
    "raising-cause": CauseError,
    "module-is-a-number": lambda: _type("NumberError", __module__=7),
    "module-is-a-liar": lambda: _type("LiarError", __module__=Liar("liar")),
    "name-is-a-surrogate": lambda: _type("SurrogateError", __qualname__="Bad\ud800Error"),
    "name-of-a-megabyte": lambda: _type("N" * 1_000_000),
    "name-with-a-line-break": lambda: _type("Broken", __qualname__="\nBroken\x00Error"),
    "group-of-10000": lambda: ExceptionGroup("many", [ValueError(number) for number in range(10_000)]),
    "cause-cycle": _cycle,
    "odd-text": lambda: ValueError("\x00\x1b[31m\u202e\U0001f4a9\ud83d\r\n\x7f"),
    "odd-cause": lambda: _caused(ValueError("\x1b]0;owned\x07\x9b2J")),
    "fifty-megabytes": lambda: ValueError("ü" * 50_000_000),
    "system-exit": SystemExit,
    "keyboard-interrupt": KeyboardInterrupt,
    "generator-exit": GeneratorExit,
    "memory": MemoryError,
    "recursion": RecursionError,
    "stop-iteration": StopIteration,
    "base": lambda: BaseException("base"),
}
"""What may be raised, by name."""


def script(message: Message) -> None:  # noqa: C901, PLR0912, PLR0915  (one branch a word)
    """Do what the body says."""
    word, _, argument = message.text.partition(" ")
    match word:
        case "raise":
            error: BaseException = ERRORS[argument]()
            raise error
        case "deep":
            sys.setrecursionlimit(2 * DEEP)
            threading.stack_size(512 << 20)
            _in_a_thread(lambda: recurse(DEEP))
        case "postpone-huge":
            raise DelayError(timedelta.max)
        case "postpone-negative":
            raise DelayError(timedelta(days=-1))
        case "postpone-text":
            raise DelayError("tomorrow")
        case "postpone-raising":
            raise RaisingDelayError
        case "chdir":
            os.chdir("/")
        case "close-standard":
            os.closerange(0, 3)
        case "close-all":
            os.closerange(0, 1024)
        case "no-stdout":
            sys.stdout = sys.stderr = None
        case "odd-stdout":
            sys.stdout = sys.stderr = object()
        case "closed-stdout":
            sys.stdout.close()
        case "locale":
            os.environ["LC_ALL"] = "C"
            locale.setlocale(locale.LC_ALL, "C")
        case "timezone":
            os.environ["TZ"] = "Pacific/Kiritimati"
            time.tzset()
        case "umask":
            os.umask(0o777)
        case "files":
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        case "file-size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        case "take-log":
            for each in Path("/proc/self/fd").iterdir():
                if each.exists() and each.readlink().suffix == ".log":
                    os.dup2(os.open("/dev/null", os.O_WRONLY), int(each.name))
        case "memory":
            resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
        case "recursion-limit":
            sys.setrecursionlimit(40)
        case "threads":
            for _ in range(20):
                threading.Thread(target=threading.Event().wait, daemon=False).start()
        case "fork":
            os.fork()
        case "real-time-signal":
            os.kill(os.getpid(), 40)
        case "forged-output":
            os.write(1, b"\x00\x01\x00" + bytes([255] * 7) + b"\x00\x01\x00\x00\x00\x00\x7f\xff\x01\x00x\n")
        case "print-and-exit":
            print("\x1b[2Jcleared\r\b\n\ttab é")  # noqa: T201
            os._exit(3)
        case "abort":
            ctypes.CDLL(None).abort()
        case "alarm":
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            time.sleep(5)
        case _:
            pass


def row_of(message: Message) -> dict[str, object]:
    """Do what the body says, and return a row."""
    script(message)
    return {"n": message.lookup_id, "text": "x" * (2_000_000 if message.text == "large" else 1)}


def _in_a_thread(work: Any) -> None:
    """Do something with a larger stack, and raise what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised again below)
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    threading.stack_size(0)
    raise raised[0]
