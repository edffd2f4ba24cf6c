"""What a command tells on standard error: a warning once, an error in one line, with exit code 2."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_poison.core.errors import ConfigurationHint, ConfigurationWarning, InputError, PoisonError

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTPUTS = ("table", "json")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with exit code 2 and one line for an error of this package."""
    try:
        yield
    except PoisonError as error:
        say("error", str(error))
        raise SystemExit(2) from None


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


def say(kind: str, text: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"{kind}: {' '.join(text.split())}\n")


def check_output(output: str) -> str:
    """Return the output format. Raises InputError."""
    if output not in OUTPUTS:
        raise InputError(f"--output {output}: expected one of {', '.join(OUTPUTS)}.")
    return output
