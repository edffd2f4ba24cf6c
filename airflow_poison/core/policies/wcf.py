"""What the policies of all queued WCF bindings do the same way with their settings."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.core.policies import settings, transactions
from airflow_poison.core.policies.base import SystemSettings
from airflow_poison.core.policies.decisions import Halted
from airflow_poison.core.policies.receive_error_handling import ReceiveErrorHandling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from airflow_poison.core.policies.seam import Entry


_TICK = timedelta(microseconds=1)
_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "receive_retry_count": settings.whole_number,
    "max_retry_cycles": settings.whole_number,
    "retry_cycle_delay": settings.duration,
    "receive_error_handling": lambda name, value: settings.choice(name, value, ReceiveErrorHandling),
    "exactly_once": settings.flag,
    "transaction_scope_required": settings.flag,
    "transaction_timeout": settings.duration,
    "machine_transaction_timeout": lambda name, value: settings.duration(name, value, _TICK),
    "machine_maximum_transaction_timeout": lambda name, value: settings.duration(name, value, _TICK),
    "max_batch_size": settings.whole_number,
    "sessions": settings.flag,
    "max_received_message_size": lambda name, value: value if value is None else settings.whole_number(name, value, least=1),
}


class WcfSettings(SystemSettings):
    """Base of frozen settings: the transaction timeout and the size limit."""

    __slots__ = ()

    aliases: ClassVar[Mapping[str, str]] = {
        "ReceiveRetryCount": "receive_retry_count",
        "MaxRetryCycles": "max_retry_cycles",
        "RetryCycleDelay": "retry_cycle_delay",
        "ReceiveErrorHandling": "receive_error_handling",
        "ExactlyOnce": "exactly_once",
        "TransactionScopeRequired": "transaction_scope_required",
        "TransactionTimeout": "transaction_timeout",
        "MaxBatchSize": "max_batch_size",
        "MaxReceivedMessageSize": "max_received_message_size",
    }
    transaction_timeout: timedelta
    machine_transaction_timeout: timedelta
    machine_maximum_transaction_timeout: timedelta
    max_received_message_size: int | None

    def check(self) -> None:
        """Check the settings that the bindings share, as far as this one has them. Raises SettingError."""
        names = [name for name in _CHECKS if name in self.__dataclass_fields__]
        settings.put(self, **{name: _CHECKS[name](name, getattr(self, name)) for name in names})

    def _warn(self) -> None:
        for text in (*_capped(self), *self._warnings()):
            settings.warn(text)

    def _warnings(self) -> Iterable[str]:
        """Return what is allowed and rarely wanted, beside a timeout that is capped."""
        return ()

    @property
    def halts_as(self) -> Halted:
        """Fault (spec WCF-21)."""
        return Halted.FAULTED

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """How long one delivery may take (spec WCF-35)."""
        return transactions.effective_timeout(self.transaction_timeout, self.machine_transaction_timeout, self.machine_maximum_transaction_timeout)

    def unreadable(self, entry: Entry) -> str | None:
        """Say that a message is above the size limit (spec WCF-29); None when it is not."""
        limit = self.max_received_message_size
        if limit is None or entry.size <= limit:
            return None
        return f"{entry.size} bytes are above max_received_message_size={limit}"


def _capped(policy: WcfSettings) -> Iterator[str]:
    """Say that the timeout is above the machine's maximum, which then holds (spec WCF-35)."""
    most = policy.machine_maximum_transaction_timeout
    name = "transaction_timeout" if policy.transaction_timeout else "machine_transaction_timeout"
    wanted = policy.transaction_timeout or policy.machine_transaction_timeout
    if wanted > most:
        yield (
            f"{name}={wanted} is above machine_maximum_transaction_timeout={most}, which caps it: a delivery is rolled back after {most}. "
            "Set machine_maximum_transaction_timeout, too, where deliveries may take longer."
        )
