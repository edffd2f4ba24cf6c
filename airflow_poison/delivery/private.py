"""Private values of a batch of messages: texts of failures, and the handler's output, without them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_poison.delivery.sessions.verdicts import MAX_TEXT, MAX_TRACE, cut, cut_front
from airflow_poison.values.hidden_values import HiddenValues

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from airflow_poison.delivery.ends import Delivered
    from airflow_poison.values.failures import Failure
    from airflow_poison.values.masking import Masking


class PrivateBatch:
    """The hidden values of a batch's messages, each found when it is asked for first.

    :param batch: with ``body`` and ``properties``.
    """

    def __init__(self, masking: Masking, batch: pa.RecordBatch) -> None:
        self._masking, self._batch = masking, batch
        self._of: dict[int, HiddenValues] = {}
        self._all: HiddenValues | None = None

    def of(self, row: int) -> HiddenValues:
        """Return the values of one message; of all without one."""
        if not 0 <= row < self._batch.num_rows:
            return self.all()
        if row not in self._of:
            body, properties = (self._batch.column(name)[row].as_py() for name in ("body", "properties"))
            self._of[row] = self._masking.values(body or b"", dict(properties or ()))
        return self._of[row]

    def all(self) -> HiddenValues:
        """Return the values of all messages."""
        if self._all is None:
            self._all = HiddenValues.of_all(self.of(row) for row in range(self._batch.num_rows))
        return self._all

    def line(self, row: int, text: str) -> str:
        """Return what was printed while a message was with the handler; several, or none: -1."""
        return self.of(row).hide(text)

    def said(self, text: str) -> str:
        """Return a text about no single message."""
        return self.all().hide(text)


def output_of(masking: Masking | None, batch: pa.RecordBatch) -> PrivateBatch | None:
    """Return the hidden values of a batch; None where nothing is hidden."""
    return None if masking is None else PrivateBatch(masking, batch)


def without_values(delivered: Delivered, masking: Masking, *, together: bool) -> Delivered:
    """Return what was delivered, with failures that have no hidden values. Which failures are alike does not depend on those.

    :param together: the handler has had several messages at once: what it says of one may have values of another.
    """
    batch = PrivateBatch(masking, delivered.batch)
    failures: Mapping[int, Failure] = {
        row: hidden_failure(failure, batch.all() if together else batch.of(row)) for row, failure in delivered.failures.items()
    }
    unstable = [{**details, "error": batch.said(details.get("error", ""))} for details in delivered.unstable]
    return replace(delivered, failures=failures, unstable=unstable)


def hidden_failure(failure: Failure, values: HiddenValues) -> Failure:
    """Return a failure without the values, its texts as long as they may be."""
    return replace(failure, text=cut(values.hide(failure.text), MAX_TEXT), trace=cut_front(values.hide_trace(failure.trace), MAX_TRACE))
