"""Redrive for a new handler: for each new ``handler_version`` some messages of each error group go back to main, and then the others.

Off unless the setting is recorded in the queue. Each error group has a plan of its own with a canary: a canary that fails stops only its own group.
A version is redriven once in a queue, also when versions change back and forth.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_poison.desk.actions import PlanAction, Verb
from airflow_poison.desk.applying import apply, kept
from airflow_poison.desk.plans import cancel, facts_of, find_plan, plan, record
from airflow_poison.desk.queries import groups
from airflow_poison.desk.rules import configure
from airflow_poison.desk.selection import Selection
from airflow_poison.passes.declaration import Canary
from airflow_poison.store.control import QueueState
from airflow_poison.store.files import PlanState
from airflow_poison.values.errors import PlanStateError, SettingError
from airflow_poison.values.fault_points import reach

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.desk.plans import PlanView
    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

SETTING, SEEN = "redrive_on_new_handler", "handlers"
"""The parts of a queue's desk: the canary of a redrive; and the handler versions that are not new any more, the newest last."""
HANDLER, GROUP = "handler", "group"
"""What the events of a redrive's plans say: the version of the handler, and the error group."""
MOST_GROUPS = 100
"""The largest error groups that are redriven; the others are left to people."""
_MOST_SEEN = 1_000
_LONGEST = 200
_UNDER_WAY = frozenset({PlanState.CANARY, PlanState.RUNNING})


def set_redrive(table: QueueTable, canary: Canary | Mapping[str, Any] | None, clock: Clock) -> Canary | None:
    """Record that a queue redrives for each new version of its handler; None: not any more, which is the default. Raises SettingError.

    The first version that the queue sees after this starts nothing.

    :param canary: so many messages of each error group go first, and such a share of them must be settled before the others follow.
    """
    wanted = checked_canary(canary)
    configure(table, clock, **({SETTING: None, SEEN: None} if wanted is None else {SETTING: wanted.to_dict()}))
    return wanted


def checked_canary(canary: Canary | Mapping[str, Any] | None) -> Canary | None:
    """Return a canary that is given as such or as plain values. Raises SettingError."""
    if canary is None or isinstance(canary, Canary):
        return canary
    try:
        return Canary(**canary)
    except TypeError:
        raise SettingError(SETTING, canary, "Canary(10, 0.95), {'messages': 10, 'share': 0.95}, or None") from None


def checked_version(version: str | None) -> str | None:
    """Return a version of a handler. Raises SettingError for anything but a text that is neither empty nor longer than 200 characters."""
    if version is None or (isinstance(version, str) and version.strip() and len(version) <= _LONGEST):
        return version
    raise SettingError("handler_version", version, f"a text of 1 to {_LONGEST} characters, another one for each version of the handler")


def redrive(table: QueueTable, clock: Clock, version: str | None = None, *, who: str) -> tuple[PlanView, ...]:
    """Begin a redrive for a new version, and go on with those that wait for their canaries; return the plans that it has touched.

    Called before a pass claims anything, or without one. Killed anywhere and called again, it does each message once. A queue that is not enabled is
    left as it is. Raises SettingError.

    :param version: of the handler that is about to receive; None: only go on.
    """
    checked_version(version)
    control = table.snapshot().control
    if control.desk.get(SETTING) is None or control.state is not QueueState.ENABLED:
        return ()
    if version is not None and version not in _seen(control):
        if _seen(control):
            _begin(table, clock, version, who)
        reach("desk.redrive.before_seen")
        _note(table, clock, version)
    return tuple(_go_on(table, clock))


def _seen(control: Control) -> Sequence[str]:
    seen: Any = control.desk.get(SEEN) or ()
    return tuple(seen)


def _note(table: QueueTable, clock: Clock, version: str) -> None:
    """Note that a version is not new any more."""

    def change(control: Control) -> Control:
        if version in _seen(control):
            return control
        return replace(control, desk={**control.desk, SEEN: [*_seen(control), version][-_MOST_SEEN:]})

    table.alter(change, lambda _before, _after: (), clock.now())


def _begin(table: QueueTable, clock: Clock, version: str, who: str) -> None:
    """Record the plans of a new version, one for each error group; plans of an earlier one that are not done are cancelled."""
    canary = checked_canary(table.snapshot().control.desk.get(SETTING))  # type: ignore[arg-type]  # as it was recorded
    for found in table.stored_plans():
        if facts_of(found).get(HANDLER, version) != version and found.state in _UNDER_WAY:
            with suppress(PlanStateError):  # it has ended meanwhile
                cancel(table, found.plan, clock, who=who, reason=f"handler version {version} is newer")
    put_back = PlanAction(verb=Verb.PUT_BACK)
    for group in groups(table, Selection(), clock, limit=MOST_GROUPS).groups:
        if group.error:
            planned = plan(table, Selection(error=group.error), put_back, clock)
            reach("desk.redrive.before_plan")
            record(
                table,
                planned,
                clock,
                who=who,
                reason=f"new handler version {version}",
                canary=canary,
                key=f"redrive\x1f{version}\x1f{group.error}",
                facts={HANDLER: version, GROUP: f"{group.type} {group.error}"},
            )
            reach("desk.redrive.after_plan")


def _go_on(table: QueueTable, clock: Clock) -> list[PlanView]:
    """Go on with the plans of redrives as far as their canaries let them."""
    touched, failed = [], list[Exception]()
    for found in table.stored_plans():
        if HANDLER in facts_of(found) and found.state in _UNDER_WAY:
            with kept(failed):
                with suppress(PlanStateError):  # it was cancelled meanwhile
                    apply(table, found.plan, clock)
                touched.append(find_plan(table, found.plan))
    if failed:
        raise failed[0]
    return touched
