"""WebSphere MQ messaging provider, activation specification: backout of messages, and a stop after failures in a row (spec section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, assert_never

from airflow_poison.rules import settings
from airflow_poison.rules.decisions import Block, Counts, Dispose, Halted
from airflow_poison.rules.policy import FIRST, Entry, Opening, Restart
from airflow_poison.rules.websphere_mq import Reason, StopRule, WebSphereMqReceiver, WebSphereMqSettings, first_stop, stops
from airflow_poison.values.errors import ConfigurationHint, ConfigurationWarning, SettingError

SEQUENTIAL_FAILURES: Final = "sequential_failures"
"""The counter ``c`` of the specification."""


class InitialState(StrEnum):
    """Whether a new endpoint receives (spec WMQ-27)."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"


class CounterOverBrokerRestart(StrEnum):
    """What a restart of the queue manager does to the counter (spec section 11, item 24)."""

    KEPT = "kept"
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSpecification(WebSphereMqSettings):
    """The settings of an activation specification and its queue. Raises SettingError for a value that is not allowed (spec WMQ-E9).

    ``WebSphereMqSettings`` has the attributes of the queue.

    :param stop_endpoint_if_delivery_fails: count failures in a row, and stop the endpoint at a limit (spec WMQ-4); False: it never stops.
    :param failure_delivery_count: the limit N, 0 to 2147483647; 0: the first failure stops the endpoint (spec WMQ-6).
    :param stop_rule: the counter ``reaches`` max(N, 1) (spec WMQ-7), is ``more_than`` N (spec WMQ-28), or ``equals`` N.
    :param reset_on_start: every start of the endpoint by people (enable, restart) sets the counter to 0 (spec WMQ-8); a pass is no start.
    :param requeue_resets_counter: a requeue sets the counter to 0, as a success does (spec section 11, item 21).
    :param counter_over_broker_restart: the counter is ``kept`` over a restart of the queue manager or ``reset`` (spec ZOS-8).
    :param max_server_sessions: how many messages are processed at the same time, 1 to 2147483647 (spec WMQ-17).
    :param endpoint_initial_state: ``ACTIVE``, or ``INACTIVE``: a new queue is stopped until it is started (spec WMQ-27).

    Memory: a message's redelivery count is durable, but on z/OS without hardening a restart of the queue manager sets it to 0. The counter
    of failures in a row is kept for the next endpoint, over passes, stops and restarts of the queue manager; a restart of the server sets
    it to 0, and so does a pass that is killed and resumed.

    Warns with ConfigurationWarning when the endpoint stops before a message is requeued, and with ConfigurationHint when several poison
    messages together can stop it (spec WMQ-16).
    """

    system: ClassVar[str] = "ActivationSpecification"
    title: ClassVar[str] = "WebSphere MQ, activation specification"
    aliases: ClassVar[Mapping[str, str]] = {
        **WebSphereMqSettings.aliases,
        "Stop endpoint if message delivery fails": "stop_endpoint_if_delivery_fails",
        "stopEndpointIfDeliveryFails": "stop_endpoint_if_delivery_fails",
        "Number of sequential delivery failures before suspending endpoint": "failure_delivery_count",
        "failureDeliveryCount": "failure_delivery_count",
        "Maximum server sessions": "max_server_sessions",
        "maxServerSessions": "max_server_sessions",
        "maxPoolDepth": "max_server_sessions",
        "WAS_EndpointInitialState": "endpoint_initial_state",
    }

    stop_endpoint_if_delivery_fails: bool = True
    failure_delivery_count: int = 0
    stop_rule: StopRule | str = StopRule.REACHES
    reset_on_start: bool = False
    requeue_resets_counter: bool = False
    counter_over_broker_restart: CounterOverBrokerRestart | str = CounterOverBrokerRestart.KEPT
    max_server_sessions: int = 10
    endpoint_initial_state: InitialState | str = InitialState.ACTIVE

    def warnings(self) -> Iterator[ConfigurationWarning]:
        """Return what WMQ-16 says about a stop beside a backout threshold, too; only an endpoint that never stops is safe (spec WMQ-21)."""
        yield from WebSphereMqSettings.warnings(self)
        threshold, stop_at = self.backout_threshold, first_stop(StopRule(self.stop_rule), self.failure_delivery_count)
        if not self.stop_endpoint_if_delivery_fails or not threshold or stop_at is None:
            return
        remedy = "Set stop_endpoint_if_delivery_fails=False to make sure that poison messages are always requeued."
        if stop_at <= threshold:
            text = f"the endpoint stops at failure {stop_at} in a row, before a message is requeued (backout_threshold={threshold}). {remedy}"
            yield ConfigurationWarning(text)
        elif self.max_server_sessions > 1 or self.sweeps:
            text = f"the counter is shared: different poison messages together stop the endpoint at failure {stop_at} in a row. {remedy}"
            yield ConfigurationHint(text)
        elif not self.requeue_resets_counter:
            yield ConfigurationHint(f"poison messages in a row together stop the endpoint at failure {stop_at}: a requeue is no success. {remedy}")

    @property
    def halting(self) -> bool:
        """Whether failures in a row stop the endpoint."""
        return self.stop_endpoint_if_delivery_fails

    @property
    def stateless(self) -> bool:
        """Whether each decision depends on the message alone: without a stop there is no counter (spec WMQ-4)."""
        return not self.stop_endpoint_if_delivery_fails

    @property
    def server_sessions(self) -> int:
        """How many messages are processed at the same time (spec WMQ-17)."""
        return self.max_server_sessions

    @property
    def starts_halted(self) -> Halted | None:
        """Whether a new endpoint waits until it is started (spec WMQ-27)."""
        return Halted.STOPPED if self.endpoint_initial_state == InitialState.INACTIVE else None

    def counters_after(self, counters: Mapping[str, int], restart: Restart) -> Mapping[str, int]:
        """Lose the counter with the application server, which it lives in (spec ZOS-8, section 11.1); at a mere start as ``reset_on_start`` says."""
        match restart:
            case Restart.ENDPOINT:
                lost = self.reset_on_start
            case Restart.SERVER:
                lost = True
            case Restart.BROKER:
                lost = self.counter_over_broker_restart == CounterOverBrokerRestart.RESET
            case _:
                assert_never(restart)
        return {} if lost else counters

    def counters_when_altered(self, counters: Mapping[str, int]) -> Mapping[str, int]:
        """Keep the counter where there is a stop (spec WMQ-4): no change of a setting is a start (spec WMQ-8)."""
        return counters if self.stop_endpoint_if_delivery_fails else {}

    def open(self, opening: Opening = FIRST) -> ActivationSpecificationReceiver:
        """Start the endpoint, with the counter that an earlier one left behind (spec WMQ-8)."""
        return ActivationSpecificationReceiver(self, opening, opening.counters.get(SEQUENTIAL_FAILURES, 0))

    @classmethod
    def arguments(cls, stored: Mapping[str, object]) -> dict[str, Any]:
        """Return the constructor's arguments from JSON values, in our words, MQ's or Liberty's. Raises SettingError."""
        return super(ActivationSpecification, cls).arguments(_from_liberty(stored))


@dataclass(slots=True)
class ActivationSpecificationReceiver(WebSphereMqReceiver):
    """A started endpoint: one counter of failures in a row for all its sessions (spec WMQ-18)."""

    policy: ActivationSpecification
    sequential_failures: int

    def _failed(self, counts: Counts) -> dict[str, str]:  # noqa: ARG002  (the interface's signature)
        if not self.policy.stop_endpoint_if_delivery_fails:
            return {}
        failures = self.sequential_failures = min(self.sequential_failures + 1, settings.LARGEST)
        queue, limit = self.opening.queue, self.policy.failure_delivery_count
        if not stops(StopRule(self.policy.stop_rule), failures, limit):
            return {}
        text = f"The message endpoint of {queue} was stopped: delivery failed {failures} times in a row; failure_delivery_count={limit}."
        return {"code": "CWWMQ0007W", "text": text, SEQUENTIAL_FAILURES: str(failures)}

    def transaction_committed(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  (the interface's signature)
        """Begin the sequence anew: a success in any session sets the counter to 0 (spec WMQ-4, WMQ-18)."""
        self.sequential_failures = 0

    def counters(self) -> Mapping[str, int]:
        """Leave the counter to the next endpoint (spec WMQ-8); without a stop there is none (spec WMQ-4)."""
        return {SEQUENTIAL_FAILURES: self.sequential_failures} if self.policy.stop_endpoint_if_delivery_fails else {}

    def requeue(self, entry: Entry, reason: Reason, now: datetime) -> Dispose | Block:
        """A requeue is no delivery: the counter stays, unless the settings say otherwise (spec WMQ-14)."""
        if self.policy.requeue_resets_counter:
            self.sequential_failures = 0
        return WebSphereMqReceiver.requeue(self, entry, reason, now)


_LIBERTY: Final = "maxSequentialDeliveryFailures"


def _from_liberty(stored: Mapping[str, object]) -> Mapping[str, object]:
    """Translate Liberty's one setting: -1 never stops, 0 stops at the first failure, 1 at the second (spec WMQ-28)."""
    given = {name: value for name, value in stored.items() if name.lower() == _LIBERTY.lower()}
    if not given:
        return stored
    if len(given) > 1:
        raise SettingError(_LIBERTY, list(given.values()), "one value: it was given twice")
    (value,) = given.values()
    most = settings.whole_number(_LIBERTY, value, least=-1)
    meant: dict[str, object] = {"stop_endpoint_if_delivery_fails": most >= 0, "failure_delivery_count": max(most, 0), "stop_rule": StopRule.MORE_THAN}
    others = {name: value for name, value in stored.items() if name not in given}
    if both := meant.keys() & others.keys():
        raise SettingError(_LIBERTY, value, f"not together with {', '.join(sorted(both))}")
    return others | meant
