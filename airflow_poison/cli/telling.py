"""What a command tells on standard error, and the exit codes: a warning once, an error in one line, an interrupt with the state of things."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from typing import TYPE_CHECKING, Final

from airflow_poison.core.errors import (
    ConfigurationHint,
    ConfigurationWarning,
    ConversationNotFoundError,
    DecisionOutdatedError,
    InputError,
    MessageNotFoundError,
    PoisonError,
    QueueHaltedError,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from typing import NoReturn

OUTPUTS = ("table", "json")
NO: Final = 1
"""The answer is no: nothing is there, the queue is halted, something is wrong."""
CANNOT: Final = 2
"""Wrong usage, or it cannot be done."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""What shells say of a process that SIGINT, or SIGPIPE, has ended."""
_ANSWERS = (QueueHaltedError, MessageNotFoundError, ConversationNotFoundError, DecisionOutdatedError)
"""Errors that answer the question with no."""
_WHOLE = "a change is one commit: it was made as a whole, or not at all; 'show' tells which"


def command(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
    """Make a function a command: an error of this package ends it with one line, an interrupt or a reader that goes away without a traceback."""

    @wraps(function)
    def run(args: Namespace) -> None:
        try:
            with errors_in_one_line():
                function(args)
            sys.stdout.flush()
        except BrokenPipeError:
            _end_of_pipe()
        except KeyboardInterrupt:
            say("interrupted", _WHOLE)
            raise SystemExit(INTERRUPTED) from None

    return run


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with one line for an error of this package, or of a file: exit code 1 when it is an answer, else 2."""
    try:
        yield
    except PoisonError as error:
        say("error", str(error))
        raise SystemExit(NO if isinstance(error, _ANSWERS) else CANNOT) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        say("error", f"{error.filename or 'the system'}: {error.strerror or error}.")
        raise SystemExit(CANNOT) from None


def _end_of_pipe() -> NoReturn:
    """End quietly: whoever read the output has gone. What Python still holds of it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(BROKEN_PIPE)


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """Say warnings about settings, each once, and return them; they are complete when the block has ended."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigurationWarning)
        yield told
    for warning in caught:
        text = str(warning.message)
        if issubclass(warning.category, ConfigurationWarning) and text not in told:
            told.append(text)
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


def say(kind: str, text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{kind}: {' '.join(text.split())}\n")


def check_output(output: str) -> str:
    """Return the output format. Raises InputError."""
    if output not in OUTPUTS:
        raise InputError(f"--output {output}: expected one of {', '.join(OUTPUTS)}.")
    return output
