"""The worked examples of the WebSphere default messaging provider (spec section 5)."""

from __future__ import annotations

import warnings
from typing import Any

from airflow_poison.rules.decisions import Halted
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.policy import Access
from airflow_poison.rules.simulation.scripted_host import Action, Script, Scripted
from airflow_poison.values.errors import ConfigurationWarning
from tests.conformance.examples.shape import Calls, End, Example, Story

BLOCKED, EXCEPTIONED, DROPPED, STOPPED, STARTED = "BLOCKED", "EXCEPTIONED", "DROPPED", "STOPPED", "STARTED"
SYSTEM = "_SYSTEM.Exception.Destination.ME1"
BEST_EFFORT = {"reliability": "best_effort_nonpersistent"}


def _policy(**settings: Any) -> DefaultMessaging:
    with warnings.catch_warnings(action="ignore", category=ConfigurationWarning):
        return DefaultMessaging(**settings)


def _at_once(name: str, deliveries: int) -> Calls:
    return tuple((0, name, count, 0) for count in range(deliveries))


E1 = Example(
    "DMP-E1",
    _policy(),
    Script({"x": "rb*", "y": "ok"}),
    {"x": End(SYSTEM), "y": End("processed")},
    story=((0, "x", EXCEPTIONED),),
    calls=(*_at_once("x", 5), (0, "y", 0, 0)),
    receives=6,
    elapsed=0,
)

E2 = tuple(
    Example(
        f"DMP-E2 max {most}",
        _policy(max_failed_deliveries=most),
        Script("rb*"),
        {"m": End(SYSTEM, deliveries)},
        story=((0, "m", EXCEPTIONED),),
        calls=_at_once("m", deliveries),
        receives=deliveries,
    )
    for most, deliveries in ((0, 1), (1, 1), (2, 2), (3, 3), (5, 5), (10, 10))
)

E3 = tuple(
    Example(
        f"DMP-E3 {row}",
        _policy(exception_destination="None", **timeout),
        Script("rb*8 ok"),
        {"m": End("processed", 8)},
        story=tuple((at, "m", BLOCKED) for at in (0, 5, 10, 15)),
        calls=(*_at_once("m", 5), (5, "m", 5, 0), (10, "m", 6, 0), (15, "m", 7, 0), (20, "m", 8, 0)),
        elapsed=20,
    )
    for row, timeout in (("per-destination value -1", {}), ("per-destination value 10000", {"blocked_retry_timeout": 10_000}))
)

_E5_X: Calls = ((0, "x", 0, 0), (0, "x", 1, 0), (5, "x", 2, 0), (10, "x", 3, 0))
E5 = tuple(
    Example(
        f"DMP-E5 destination_blocked = {str(blocked).lower()}",
        _policy(exception_destination="None", max_failed_deliveries=2, destination_blocked=blocked),
        Script({"x": "rb rb rb ok", "y": "ok"}),
        {"x": End("processed"), "y": End("processed")},
        story=((0, "x", BLOCKED), (5, "x", BLOCKED)),
        calls=(*_E5_X, (10, "y", 0, 0)) if blocked else (*_E5_X[:2], (0, "y", 0, 0), *_E5_X[2:]),
        elapsed=10,
    )
    for blocked in (True, False)
)


def _specify(row: str, end: End, event: str, *, properties: dict[str, str] | None = None, access: Access | None = None, **settings: Any) -> Example:
    return Example(
        f"DMP-E6 {row}",
        _policy(max_failed_deliveries=3, **settings),
        Script(Scripted("m", "rb*", properties=properties or {})),
        {"m": end},
        story=((0, "m", event),),
        calls=_at_once("m", 3),
        receives=3,
        access={"errQ": access} if access is not None else {},
        needs_a_host="a table knows no authorities on single queues" if access is Access.DENIED else "",
    )


E6 = (
    _specify("Specify errQ, exists", End("errQ"), EXCEPTIONED, exception_destination="errQ"),
    _specify("Specify errQ, missing", End(SYSTEM), EXCEPTIONED, exception_destination="errQ", access=Access.MISSING),
    _specify("Specify errQ, no authority", End("main", 3, 0), BLOCKED, exception_destination="errQ", access=Access.DENIED),
    _specify("System, best-effort message", End("dropped"), DROPPED, properties=BEST_EFFORT),
    _specify("temporary destination", End("dropped"), DROPPED, temporary_destination=True),
)

_STARTS = (10, 20, 30, 40, 50)
_STOPS: Story = tuple(event for at in (0, 10, 20, 30) for event in ((at, "x", STOPPED), (at + 10, "", STARTED)))
E8 = (
    Example(
        "DMP-E8 strict ordering, stop not modelled",
        _policy(strict_message_ordering=True, max_concurrency=5),
        Script({"x": "rb*", "y": "ok"}),
        {"x": End(SYSTEM), "y": End("processed")},
        story=((0, "x", EXCEPTIONED),),
        calls=(*_at_once("x", 5), (0, "y", 0, 0)),
    ),
    Example(
        "DMP-E8 strict ordering, stop modelled",
        _policy(strict_message_ordering=True, auto_stop_sequential_message_failure=3),
        Script({"x": "rb*", "y": "ok"}, actions=[Action(at, "open") for at in _STARTS]),
        {"x": End(SYSTEM), "y": End("processed")},
        story=(*_STOPS, (40, "x", EXCEPTIONED), (40, "y", STOPPED), (50, "", STARTED)),
        calls=(*((at, "x", count, 0) for count, at in enumerate((0, 10, 20, 30, 40))), (50, "y", 0, 0)),
    ),
    Example(
        "DMP-E8 None, stop modelled",
        _policy(exception_destination="None", auto_stop_sequential_message_failure=3),
        Script({"x": "rb*", "y": "ok"}),
        {"x": End("main", 1, 0), "y": End("main", 0, 0)},
        story=((0, "x", STOPPED),),
        calls=((0, "x", 0, 0),),
        halted=Halted.STOPPED,
    ),
)

_NEVER_AGAIN = _policy(exception_destination="None", max_failed_deliveries=2, override_blocked_retry_timeout=True)
ENDED_WAITS = (
    Example(
        "DMP-10 an engine restart ends any wait",
        _NEVER_AGAIN,
        Script({"x": "rb rb ok", "y": "ok"}, actions=[Action(60, "restart_broker")]),
        {"x": End("processed"), "y": End("processed")},
        story=((0, "x", BLOCKED),),
        calls=(*_at_once("x", 2), (60, "x", 0, 0), (60, "y", 0, 0)),
    ),
    Example(
        "DMP-10 the removal of the message ends any wait",
        _NEVER_AGAIN,
        Script({"x": "rb*", "y": "ok"}, actions=[Action(60, "remove", "x")]),
        {"x": End("removed"), "y": End("processed")},
        story=((0, "x", BLOCKED),),
        calls=(*_at_once("x", 2), (60, "y", 0, 0)),
    ),
)

EXAMPLES: tuple[Example, ...] = (E1, *E2, *E3, *E5, *E6, *E8, *ENDED_WAITS)
