"""WebSphere MQ messaging provider, listener port: backout of messages, and a stop after too many deliveries of one (spec section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_poison.rules.policy import FIRST, Opening
from airflow_poison.rules.websphere_mq import LARGEST_ON_ZOS, StopRule, WebSphereMqReceiver, WebSphereMqSettings, first_stop, stops
from airflow_poison.values.errors import ConfigurationWarning, SettingError

if TYPE_CHECKING:
    from airflow_poison.rules.decisions import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPort(WebSphereMqSettings):
    """The settings of a listener port and its queue. Raises SettingError for a value that is not allowed (spec LP-E8).

    ``WebSphereMqSettings`` has the attributes of the queue. Strict order needs ``backout_threshold=0`` and ``max_sessions=1``
    (spec LP-7).

    :param max_retries: Maximum retries: the port stops when a message has been rolled back so often, 0 to 2147483647 (spec LP-1).
    :param stop_rule: the message's count ``reaches`` max(max_retries, 1), or is ``more_than`` max_retries (spec LP-2).
    :param max_sessions: Maximum sessions: how many messages are processed at the same time, 1 to 2147483647 (spec LP-6).

    Memory: nothing but the message's redelivery count, which is durable; on z/OS without hardening a restart of the queue manager sets it
    to 0. Passes, stops, restarts of the server and lost connections change nothing.

    Warns with ConfigurationWarning when the port stops before a message is requeued (spec LP-4).
    """

    system: ClassVar[str] = "ListenerPort"
    title: ClassVar[str] = "WebSphere MQ, listener port"
    halting: ClassVar[bool] = True
    aliases: ClassVar[Mapping[str, str]] = {
        **WebSphereMqSettings.aliases,
        "maxRetries": "max_retries",
        "Maximum retries": "max_retries",
        "maxSessions": "max_sessions",
        "Maximum sessions": "max_sessions",
    }

    max_retries: int = 0
    stop_rule: StopRule | str = StopRule.REACHES
    max_sessions: int = 1

    def check_together(self) -> None:
        """Refuse the rule that listener ports do not have. Raises SettingError."""
        if self.stop_rule == StopRule.EQUALS:
            raise SettingError("stop_rule", str(self.stop_rule), f"{StopRule.REACHES}, {StopRule.MORE_THAN}")

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what LP-4 says about a stop beside a backout threshold, too."""
        yield from WebSphereMqSettings.warnings(self)
        threshold, stop_at = self.backout_threshold, first_stop(StopRule(self.stop_rule), self.max_retries)
        if self.zos and self.max_retries > LARGEST_ON_ZOS:
            text = f"max_retries={self.max_retries} is never reached on z/OS: backouts are counted up to {LARGEST_ON_ZOS} there."
            yield ConfigurationWarning(text)
        if threshold and stop_at is not None and stop_at <= threshold:
            text = (
                f"the port stops at rollback {stop_at} of a message, before it is requeued (backout_threshold={threshold}). Set max_retries higher."
            )
            yield ConfigurationWarning(text)

    @property
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: its own count stops the port; several sessions go in rounds, a sweep moves on."""
        return self.max_sessions == 1 and not self.sweeps

    @property
    def server_sessions(self) -> int:
        """How many messages are processed at the same time (spec LP-6)."""
        return self.max_sessions

    def open(self, opening: Opening = FIRST) -> ListenerPortReceiver:
        """Start the listener port."""
        return ListenerPortReceiver(self, opening)


@dataclass(slots=True)
class ListenerPortReceiver(WebSphereMqReceiver):
    """A started listener port: each message's own count stops it."""

    policy: ListenerPort

    def _failed(self, counts: Counts) -> dict[str, str]:
        queue, count, limit = self.opening.queue, counts.abort_count, self.policy.max_retries
        if not stops(StopRule(self.policy.stop_rule), count, limit):
            return {}
        text = f"The listener port of {queue} was stopped: a message was rolled back {count} times; max_retries={limit}."
        return {"code": "WMSG0036E", "text": text}
