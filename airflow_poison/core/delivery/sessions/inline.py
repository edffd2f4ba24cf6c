"""``isolation="none"``: the handler runs in the worker itself, with the same journal and the same report.

For trusted handlers and for debugging. A crash ends the worker, a hang is not ended by anybody; the journal still tells the next try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from airflow_poison.core.delivery.handlers import load_handler
from airflow_poison.core.delivery.sessions.batchrecord import BatchRecord, carried_report
from airflow_poison.core.delivery.sessions.child import Tools, load_types
from airflow_poison.core.delivery.sessions.failurelog import FailureLog, FailureReader
from airflow_poison.core.delivery.sessions.work import BatchWork, Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from airflow_poison.core.delivery.sessions.carry import Carry
    from airflow_poison.core.delivery.sessions.journalfile import Journal
    from airflow_poison.core.delivery.sessions.session import BatchReport


class InlineSession:
    """A server session without a process of its own."""

    def __init__(self, tools: Tools, journal: Journal, carry: Carry) -> None:
        self._journal, self._carry, self._halted = journal, carry, False
        self._reader = FailureReader(journal.log_descriptor)
        handler, types = load_handler(tools.handler), load_types(tools.unprocessable)
        log = FailureLog(journal.log_descriptor)
        self._endpoint = Endpoint(tools.policy, handler=handler, clock=tools.clock, log=log, unprocessable=types, queue=tools.queue)

    def deliver(self, batch: pa.RecordBatch) -> BatchReport:
        """Deliver a batch in this process."""
        report = carried_report(batch, self._carry, halted=self._halted)
        if report is None:
            record = BatchRecord(batch, self._journal, self._reader, self._carry)
            self._halted = self._endpoint.deliver(BatchWork(batch, record.section.words, record.section.number))
            record.read_log()
            report = record.report(halted=self._halted)
        self._halted = report.halted
        return report

    def counters(self) -> Mapping[str, int]:
        """Keep nothing: each decision depends on its message alone."""
        return {}

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
