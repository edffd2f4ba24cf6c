"""PoisonMessageQueueProvider: queues behind ``MessageQueueTrigger`` of the provider common.messaging, which is not needed for anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError:  # the class is not used then
    BaseMessageQueueProvider = object  # type: ignore[misc, assignment]  # duck typing is enough


class PoisonMessageQueueProvider(BaseMessageQueueProvider):  # type: ignore[misc, unused-ignore]  # its base may be missing
    """Makes ``MessageQueueTrigger(scheme="poison", queue_name="orders", event="messages")`` a ``QueueEventTrigger``; it takes the same arguments."""

    scheme = "poison"

    def queue_matches(self, queue: str) -> bool:
        """Return whether a URI is ``poison://<conn_id>/<queue>``."""
        return queue.startswith("poison://")

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return ``QueueEventTrigger``."""
        from airflow_poison.triggers import QueueEventTrigger

        return QueueEventTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the connection and the queue that a URI names."""
        del kwargs
        from airflow_poison.assets import sanitize_uri

        named = sanitize_uri(urlsplit(queue))
        return {"conn_id": named.netloc, "queue_name": named.path[1:]}
