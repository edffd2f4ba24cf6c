"""Functions in processes of their own that start in milliseconds: they are forked from one that has imported what they need.

Such a process has the environment of whoever starts it, as one that runs a program. Whoever tests what an interpreter imports, or how a program
starts, runs a program instead.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import ForkServerProcess

_CONTEXT = multiprocessing.get_context("forkserver")
_modules = [__name__]
_imported_in: dict[str, str] = {}


def preload(*modules: str, environment: Mapping[str, str] | None = None) -> None:
    """Say what is imported, too, once for all, before the first fork of this test run.

    A module that cannot be imported is left out in silence.

    :param environment: what the environment of that import has besides.
    """
    _modules.extend(modules)
    _CONTEXT.set_forkserver_preload(_modules)
    _imported_in.update(environment or {})


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    :param code: its exit code; negative: the signal that killed it.
    :param printed: what it wrote to standard output.
    :param errors: what it wrote to standard error.
    """

    code: int
    printed: str
    errors: str


class Started:
    """A process that calls a function with arguments that can be pickled."""

    def __init__(self, act: Callable[..., object], *arguments: object) -> None:
        self._act, self._folder = act, TemporaryDirectory()
        self._files = Path(self._folder.name, "printed"), Path(self._folder.name, "errors")
        self._process: ForkServerProcess = _CONTEXT.Process(target=_run, args=(self._files, dict(os.environ), act, arguments))
        with patch.dict(os.environ, _imported_in):
            self._process.start()

    def ended(self, seconds: float = 120.0) -> Ended:
        """Wait for its end. Raises TimeoutError, and kills it then."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        printed, errors = (path.read_text(errors="replace") if path.exists() else "" for path in self._files)
        self._folder.cleanup()
        if code is None:
            raise TimeoutError(f"{self._act} has not ended after {seconds} s:\n{printed}\n{errors}")
        return Ended(code, printed, errors)


def run(act: Callable[..., object], *arguments: object, seconds: float = 120.0) -> Ended:
    """Call a function in a process of its own, and wait for its end."""
    return Started(act, *arguments).ended(seconds)


def _run(files: tuple[Path, Path], environment: dict[str, str], act: Callable[..., object], arguments: tuple[object, ...]) -> None:
    for path, descriptor in zip(files, (1, 2), strict=True):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    try:
        act(*arguments)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
        sys.stdout.flush()
