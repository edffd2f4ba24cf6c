"""What the policies of all queued WCF bindings do the same way with their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_poison.core.policies import settings, transactions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field
    from datetime import timedelta

    from airflow_poison.core.policies.seam import Entry


class WcfSettings:
    """Base of frozen settings: the transaction timeout, the size limit, and the JSON round trip."""

    __slots__ = ()

    system: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    transaction_timeout: timedelta
    machine_transaction_timeout: timedelta
    machine_maximum_transaction_timeout: timedelta
    max_received_message_size: int | None

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

    def to_dict(self) -> dict[str, object]:
        """Return the settings as JSON values: durations in seconds, and ``system``."""
        return settings.to_json(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> Self:
        """Return the policy of ``to_dict()``, without warnings. Raises SettingError."""
        with settings.stored():
            return cls(**settings.from_json(cls, stored))
