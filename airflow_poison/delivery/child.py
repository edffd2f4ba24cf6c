"""The child process of a server session: loads the handler, then delivers batch after batch until its parent says goodbye."""

from __future__ import annotations

import faulthandler
import importlib
import mmap
import os
import pickle
import pkgutil
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from airflow_poison.delivery import output, platform, wire
from airflow_poison.delivery.batches import FrameCalls
from airflow_poison.delivery.journal import Section
from airflow_poison.delivery.output import LastOutput
from airflow_poison.delivery.returned import NOTHING
from airflow_poison.delivery.verdicts import failure_of
from airflow_poison.delivery.wire import (
    BROKEN,
    DONE,
    NOT_FOUND,
    READY,
    SEVERAL,
    UNLOAD,
    BatchCall,
    Called,
    ChildReport,
    Handed,
    Load,
    Setup,
    Task,
    map_slot,
)
from airflow_poison.delivery.work import Endpoint, Views
from airflow_poison.rules.decisions import Counts
from airflow_poison.values.errors import HandlerNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from airflow_poison.dialogs.services import Service
    from airflow_poison.dialogs.transaction import BegunDelivery

TRACEBACKS = 2  # faulthandler writes here


def preload() -> None:
    """Import in the zygote what every child needs; what is imported there costs a restart nothing."""
    rules = importlib.import_module("airflow_poison.rules")
    for name in (
        *(f"{rules.__name__}.{module.name}" for module in pkgutil.iter_modules(rules.__path__)),
        "airflow_poison.values.clock",
        "airflow_poison.delivery.stage",
        "pyarrow.compute",
        "pyarrow.ipc",
        "cloudpickle",
        "json",
        "traceback",
        "linecache",
        "subprocess",
    ):
        importlib.import_module(name)


def main(zygote: int, *descriptors: int) -> NoReturn:
    """Run the child after the fork.

    :param descriptors: its own: the socket, the pipe for what it prints, the journal, its log, the file of the last output, and, where rows land
        that the handler returns, the file for those.
    """
    control, printed, journal, log, said, *rows = descriptors
    platform.die_with_parent()
    if os.getppid() != zygote:
        os._exit(0)
    with suppress(PermissionError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard in (1, 2):
        os.dup2(printed, standard)
    os.close(printed)
    sock = socket.socket(fileno=control)
    code = 0
    try:
        at = [-1]
        last = LastOutput(said, at)
        os.close(said)
        _Child(sock, journal, log, at, last, rows[0] if rows else -1).serve()
    except wire.PeerGoneError:
        pass
    except platform.BrokenProcessError as error:  # another child goes on
        code = 70
        with suppress(OSError):
            os.write(TRACEBACKS, f"{error}\n".encode())
    except BaseException as error:  # noqa: BLE001  (the last frame of this process)
        code = _last_words(sock, error)
    _flush()
    os._exit(code)


def _last_words(sock: socket.socket, error: BaseException) -> int:
    failure = failure_of(error)
    with suppress(Exception):
        wire.send(sock, ChildReport(BROKEN, f"{failure.type}: {failure.text}\n{failure.trace}"))
    return 70


class _Child:
    def __init__(self, sock: socket.socket, journal: int, log: int, at: list[int], last: LastOutput, rows: int) -> None:  # noqa: PLR0917
        self._sock, self._journal, self._log, self._at, self._last, self._rows = sock, journal, log, at, last, rows
        self._words: memoryview | None = None

    def serve(self) -> None:
        """Set up, then deliver until the parent goes."""
        setup, _ = wire.receive(self._sock)
        try:
            endpoint = self._set_up(setup)
        except HandlerNotFoundError as error:
            wire.send(self._sock, ChildReport(NOT_FOUND, str(error)))
            return
        os.register_at_fork(after_in_child=self._leave)
        wire.send(self._sock, ChildReport(READY))
        while True:
            asked, descriptors = wire.receive(self._sock)
            match asked:
                case Task():
                    wire.send(self._sock, self._deliver(asked, descriptors[0], endpoint))
                case Load():
                    self._serve_calls(descriptors, endpoint, asked.services)

    def _set_up(self, setup: Setup) -> Endpoint:
        sys.path[:] = setup.path
        os.environ.clear()
        os.environ.update(setup.environment)
        if setup.folder is not None:
            with suppress(OSError):
                os.chdir(setup.folder)
        faulthandler.enable(TRACEBACKS)
        output.capture(self._at, self._last)
        endpoint = Endpoint(pickle.loads(setup.carried), self._log, self._rows)  # noqa: S301  (our own bytes)
        endpoint.at, endpoint.last = self._at, self._last
        return endpoint

    def _deliver(self, task: Task, descriptor: int, endpoint: Endpoint) -> ChildReport:
        batch = read_batch(descriptor)
        self._last.begin_batch(batch)
        section = Section(self._journal, *task.section)
        self._words = section.words
        try:
            halted = endpoint.deliver(batch, section)
        finally:
            self._words = None
        endpoint.at[0] = -1
        _flush()
        return ChildReport(DONE, halted=halted, not_landed=endpoint.take_not_landed())

    def _serve_calls(self, descriptors: list[int], endpoint: Endpoint, services: Mapping[str, Service] | None) -> None:
        """Call the handler with messages of one batch, each when it is asked for, until the batch is put away."""
        stream, slot = descriptors
        batch = read_batch(stream)
        views, taken, at = Views(batch, endpoint), map_slot(slot), self._at
        frames = None if endpoint.job.batching is None else FrameCalls(endpoint, batch)
        os.close(slot)
        self._last.begin_batch(batch)
        while True:
            number, row, abort_count, move_count = wire.receive_numbers(self._sock)
            if row == UNLOAD:
                return
            if frames is not None:
                self._call_with_frame(frames, number, row, Counts(abort_count, move_count), taken)
                continue
            begun: BegunDelivery | None = None if services is None else wire.answer(self._sock)
            message, change = views.message(row, abort_count, move_count), None
            taken[0] = number
            at[0] = row
            if services is None or begun is None:
                failure = endpoint.call(message)
            else:
                failure, change = endpoint.call_in_dialog(message, begun, services)
            at[0] = -1
            _flush()
            if failure is None and change is None and not endpoint.rows:
                wire.send_returned(self._sock)
            else:
                wire.send(self._sock, Called(failure and endpoint.tell(failure), change, b"" if failure else endpoint.rows))

    def _call_with_frame(self, frames: FrameCalls, number: int, row: int, counts: Counts, taken: memoryview) -> None:
        """Call a handler of batches with one message, or with the messages that follow."""
        asked: BatchCall | None = wire.answer(self._sock) if row == SEVERAL else None
        taken[0] = number
        told: Handed | Called
        if asked is not None:
            failure, named = frames.several(np.asarray(asked.rows), lambda: asked.counts)
            told = Handed(failure, named, () if failure or not any(frames.rows) else frames.rows)
        else:
            failure = frames.one(row, counts)
            told = Called(failure and frames.tell(failure), rows=NOTHING if failure else frames.rows[0])
        self._at[0] = -1
        _flush()
        if told.failure is None and not told.rows:
            wire.send_returned(self._sock)
        else:
            wire.send(self._sock, told)

    def _leave(self) -> None:
        """Take the session away from a process that the handler has forked: it may neither count nor answer."""
        self._last.leave()
        if self._words is not None:
            self._words.release()
        self._sock.close()
        for descriptor in (self._journal, self._log, self._rows):
            with suppress(OSError):
                os.close(descriptor)


def _flush() -> None:
    """Send what is still in the streams; a handler may have closed or replaced them."""
    for name in ("stdout", "stderr"):
        with suppress(Exception):
            getattr(sys, name).flush()


def read_batch(descriptor: int) -> pa.RecordBatch:
    """Map the Arrow stream behind a descriptor, without a copy, and close the descriptor."""
    import pyarrow as pa

    try:
        mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    with pa.ipc.open_stream(pa.py_buffer(mapping)) as reader:
        return reader.read_next_batch()
