"""Receive from many queues side by side: each with a pass of its own, and whatever becomes of one, the others go on."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from airflow_poison.core.errors import QueueHaltedError
from airflow_poison.core.passes.keys import check_named_once
from airflow_poison.core.passes.receive_result import ReceiveResult
from airflow_poison.core.passes.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_poison.core.delivery.handlers import HandlerRef
    from airflow_poison.core.delivery.stage import StageJob
    from airflow_poison.core.passes.engine import Engine
    from airflow_poison.core.passes.receive import ReceivePass
    from airflow_poison.core.store.files import Claim
    from airflow_poison.core.store.queue_table import QueueTable

_NUMBERS = tuple(field.name for field in fields(ReceiveResult) if field.type == "int")


@dataclass(frozen=True, slots=True)
class QueueRun:
    """One of the queues.

    :param queue: its name, which no other run has.
    :param open: opens the queue; returns its pass and its run key. Called once, on the thread that receives.
    """

    queue: str
    open: Callable[[], tuple[ReceivePass, str]]


@dataclass(frozen=True, slots=True)
class ReceiveManyResult:
    """What became of every queue, in the order in which they were given.

    :param results: of the passes that ended, also of those that halted their queue.
    :param errors: of the passes that did not; a queue that was halted before has a QueueHaltedError.
    """

    results: Mapping[str, ReceiveResult]
    errors: Mapping[str, Exception]
    seconds: float = 0.0

    @property
    def halted(self) -> list[str]:
        """The queues that are halted now."""
        refused = [queue for queue, error in self.errors.items() if isinstance(error, QueueHaltedError)]
        return [queue for queue, result in self.results.items() if result.halted is not None] + refused

    @property
    def failed(self) -> Mapping[str, Exception]:
        """The errors of the queues that are not halted."""
        return {queue: error for queue, error in self.errors.items() if not isinstance(error, QueueHaltedError)}

    def totals(self) -> dict[str, float]:
        """Return the sums over all queues, by the names of ``ReceiveResult``, and the messages in each second of the whole."""
        sums = {name: sum(getattr(result, name) for result in self.results.values()) for name in _NUMBERS}
        rate = sums["received"] / self.seconds if self.seconds else 0.0
        return {**sums, "seconds": self.seconds, "messages_per_second": round(rate, 1)}

    def to_dict(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "queues": {queue: result.to_dict() for queue, result in self.results.items()},
            "errors": {queue: f"{type(error).__name__}: {error}" for queue, error in self.errors.items()},
            "halted": self.halted,
            "totals": self.totals(),
        }


def receive_many(
    runs: Sequence[QueueRun], *, parallelism: int, stop: Stop | None = None, ended: Callable[[str, ReceiveResult | Exception], None] | None = None
) -> ReceiveManyResult:
    """Run a pass over every queue, so many at the same time.

    A queue that is halted, blocked or missing, or whose pass raises, stops no other. An interrupt of the caller, or ``stop``, ends all of
    them; it is raised when they have ended.

    :param parallelism: how many queues are received from at the same time, at least 1; a halting policy keeps one core of Spark busy.
    :param ended: told of every queue when its pass has ended, on the caller's thread; what it raises ends the others.
    Raises SettingError for a queue that is named twice, before anything is claimed.
    """
    check_named_once(run.queue for run in runs)
    started, stop = time.monotonic(), stop or Stop()
    became: dict[str, ReceiveResult | Exception] = {}
    with ThreadPoolExecutor(max(1, min(parallelism, len(runs))), "poison-receive") as threads:
        passes = {threads.submit(copy_context().run, _receive, run, stop): run.queue for run in runs}
        try:
            for done in as_completed(passes):
                queue = passes[done]
                became[queue] = end = _end(done.exception()) or done.result()
                if ended is not None:
                    ended(queue, end)
        except BaseException:
            stop.ask()
            raise
    ends = [(run.queue, became[run.queue]) for run in runs]
    results = {queue: end for queue, end in ends if isinstance(end, ReceiveResult)}
    errors = {queue: end for queue, end in ends if isinstance(end, Exception)}
    return ReceiveManyResult(results, errors, time.monotonic() - started)


def stoppable(receive: ReceivePass, stop: Stop) -> ReceivePass:
    """Return the same pass, ended when somebody asks for it."""
    return replace(receive, engine=lambda: _Stoppable(receive.engine(), stop))


def _receive(run: QueueRun, stop: Stop) -> ReceiveResult:
    stop.check()
    receive, key = run.open()
    return stoppable(receive, stop).run(key)


def _end(error: BaseException | None) -> Exception | None:
    """Return what a pass raised; what is no Exception, for example an interrupt, is raised here, too."""
    if error is not None and not isinstance(error, Exception):
        raise error
    return error


class _Stoppable:
    """An engine whose run ends soon after somebody has asked for it: it looks whenever the claim is kept alive."""

    def __init__(self, engine: Engine, stop: Stop) -> None:
        self._engine, self._stop = engine, stop

    @property
    def local(self) -> bool:
        return self._engine.local

    def prepare(self, table: QueueTable, handler: HandlerRef) -> None:
        self._engine.prepare(table, handler)

    def run(self, table: QueueTable, claim: Claim, job: StageJob, *, keep_alive: Callable[[], None]) -> None:
        def beat() -> None:
            self._stop.check()
            keep_alive()

        self._stop.check()
        self._engine.run(table, claim, job, keep_alive=beat)
