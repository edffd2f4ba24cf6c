"""Settings of a queue's desk, recorded in the queue: its mask, and its rules.

Rules: automatic actions on poison. A table; the first rule that a message meets has it, as IBM's dead-letter handler does it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.desk.actions import PlanAction, Verb, selection_of
from airflow_poison.desk.selection import Selection
from airflow_poison.rules.settings import as_seconds, choice, duration, put, seconds, whole_number
from airflow_poison.store import object_store_of
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import Event, EventType
from airflow_poison.values.masking import PART, SINCE, Masking
from airflow_poison.values.schema import SubQueue
from airflow_poison.values.texts import Plain, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_poison.store.control import Control
    from airflow_poison.store.queue_table import QueueTable
    from airflow_poison.values.clock import Clock

SETTING = "rules"
"""The part of a queue's desk that has its rules."""
_NAME = re.compile(r"[\w.-]{1,60}")


class RuleVerb(StrEnum):
    """What a rule does with the messages that it has."""

    PUT_BACK = "put_back"
    SEND_TO = "send_to"
    REMOVE = "remove"
    TELL = "tell"
    ASK = "ask"


_PLANNED = (RuleVerb.PUT_BACK, RuleVerb.SEND_TO, RuleVerb.REMOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Plain):
    """A line of a queue's table of rules. Raises SettingError for what is none.

    :param name: of the rule, the same while it is the same rule: what it has done to a message is counted under it.
    :param when: which poison messages; a Selection, or plain values of one: ``{"error_type": "TimeoutError"}``. Nothing: all.
    :param verb: ``put_back``, ``send_to``, ``remove``; ``tell``: an alert, once for a message; ``ask``: people decide.
    :param target: of ``send_to``, the queue; empty: the one that each message came from.
    :param after: so long after a message became poison, a duration.
    :param at_most: of ``put_back``: so often for one message; then the next rules have it. None: without end.
    :param proposes: of ``ask``: what people may agree to, ``put_back``, ``send_to`` (with ``target``) or ``remove``.
    :param export_to: of ``remove``: a folder, or a prefix in an object store, where messages are written as Parquet before they are removed. Only
        what was written is removed.
    """

    name: str
    when: Selection = field(default_factory=Selection)
    verb: RuleVerb
    target: str = ""
    after: timedelta = timedelta(0)
    at_most: int | None = None
    proposes: RuleVerb | None = None
    export_to: str = ""

    def __post_init__(self) -> None:
        """Check every part."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SettingError("rule.name", self.name, "1 to 60 letters, digits, dots, underscores and hyphens")
        put(self, verb=choice(self._named("verb"), self.verb, RuleVerb), after=duration(self._named("after"), self.after))
        self._check_times()
        self._check_proposal()
        action = self.action
        self._check_export(action)
        when = selection_of(self.when, action) if isinstance(self.when, Mapping) else self.when
        if not isinstance(when, Selection) or when.sub_queue is not SubQueue.POISON:
            raise SettingError(self._named("when"), self.when, f"a Selection of messages in {SubQueue.POISON.value}, or plain values of one")
        put(self, when=when)

    def _check_times(self) -> None:
        if self.at_most is None:
            return
        if self.verb is not RuleVerb.PUT_BACK:
            raise SettingError(self._named("at_most"), self.at_most, f"nothing for verb={self.verb.value!r}; only put_back counts")
        whole_number(self._named("at_most"), self.at_most, least=1)

    def _check_proposal(self) -> None:
        if self.verb is not RuleVerb.ASK:
            if self.proposes is not None:
                raise SettingError(self._named("proposes"), self.proposes, f"nothing for verb={self.verb.value!r}")
            return
        proposes = choice(self._named("proposes"), self.proposes or RuleVerb.PUT_BACK, RuleVerb)
        if proposes not in _PLANNED:
            raise SettingError(self._named("proposes"), proposes.value, ", ".join(_PLANNED))
        put(self, proposes=proposes)

    def _check_export(self, action: PlanAction | None) -> None:
        place: object = self.export_to
        if place == "":
            return
        if action is None or action.verb is not Verb.REMOVE:
            raise SettingError(self._named("export_to"), place, f"nothing for verb={self.verb.value!r}; what is removed can be written before")
        if not isinstance(place, str) or not (object_store_of(place) or place.startswith(("/", "file:///"))):
            expected = "a whole path such as /archive/poison, or a prefix in an object store such as s3://lake/poison"
            raise SettingError(self._named("export_to"), place, expected)

    @property
    def action(self) -> PlanAction | None:
        """What it does or proposes, as a plan's action; None for one that only tells."""
        verb = self.proposes or self.verb
        if verb in _PLANNED:
            return PlanAction(verb=Verb(verb.value), target=self.target)
        if self.target:
            raise SettingError(self._named("target"), self.target, f"nothing for verb={verb.value!r}")
        return None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the rule that plain values describe. Raises SettingError."""
        if not isinstance(values, Mapping):
            raise SettingError(SETTING, values, "rules as JSON objects with name, when and verb")
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise SettingError("rule", name, f"{', '.join(sorted(known))} (did you mean {nearest(str(name), known)!r}?)")
        for name in ("name", "verb"):
            if name not in values:
                raise SettingError(f"rule.{name}", None, "a text; every rule has a name and a verb")
        given = dict(values)
        if given.get("export_to") == "":
            raise SettingError("rule.export_to", "", "a place, or no export_to: an empty text is none, and messages would be removed unwritten")
        if "after" in given and not isinstance(given["after"], timedelta):
            given["after"] = seconds("rule.after", given["after"])
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain values; ``after`` in seconds."""
        given = Plain.to_dict(replace(self, after=timedelta(0))) | {"after": as_seconds(self.after)}
        when = {name: value for name, value in self.when.to_dict().items() if name != "sub_queue"}
        return {name: value for name, value in (given | {"when": when}).items() if value not in (None, "", {}, 0)}

    def _named(self, part: str) -> str:
        return f"rules[{self.name!r}].{part}"


def checked_rules(rules: object) -> tuple[Rule, ...]:
    """Return rules that are given as such or as plain values. Raises SettingError, also for a name that two of them have."""
    if isinstance(rules, str | Mapping) or not hasattr(rules, "__iter__"):
        raise SettingError(SETTING, rules, "a list of Rule, or of plain values of them")
    found = tuple(each if isinstance(each, Rule) else Rule.from_dict(each) for each in rules)
    seen: set[str] = set()
    for rule in found:
        if rule.name in seen:
            raise SettingError(SETTING, rule.name, "every name once; two rules have this one")
        seen.add(rule.name)
    return found


def declare_rules(table: QueueTable, rules: Sequence[Rule | Mapping[str, Any]], clock: Clock) -> tuple[Rule, ...]:
    """Record the rules of a queue in the place of those that it has; none: it has none. Raises SettingError, and QueryError for a wrong condition."""
    from airflow_poison.desk import sql

    found = checked_rules(rules)
    if any(rule.when.where for rule in found):
        with sql.messages(table, ()) as engine:
            for rule in found:
                where, values = sql.condition(engine, rule.when)
                engine.execute(f"select count(*) from messages where {where}", values)
    configure(table, clock, rules=[rule.to_dict() for rule in found] or None)
    return found


def rules_of(control: Control) -> tuple[Rule, ...]:
    """Return the rules that are recorded in a queue. Raises SettingError."""
    recorded: Any = control.desk.get(SETTING) or ()
    return checked_rules(recorded)


def rules_before(control: Control) -> tuple[tuple[Rule, ...], SettingError | None]:
    """Return the rules that are recorded in a queue up to the first one that is none, and what is wrong with that one."""
    recorded: Any = control.desk.get(SETTING) or ()
    if isinstance(recorded, str | Mapping) or not hasattr(recorded, "__iter__"):
        return (), SettingError(SETTING, recorded, "a list of rules")
    given = list(recorded)
    for number in range(1, len(given) + 1):
        try:
            checked_rules(given[:number])
        except SettingError as error:
            return checked_rules(given[: number - 1]), error
    return checked_rules(given), None


def configure(table: QueueTable, clock: Clock, **parts: object) -> Mapping[str, object]:
    """Record parts of a queue's desk, in one commit, and return all; the others stay. Nothing happens when they are so already.

    :param parts: plain JSON values by name, as each part's ``to_dict`` gives them; None takes one out.
    """
    now = clock.now()

    def change(control: Control) -> Control:
        wanted = {name: value for name, value in {**control.desk, **parts}.items() if value is not None}
        if wanted.get(PART) != control.desk.get(PART):
            wanted[SINCE] = now.isoformat()
        return control if wanted == control.desk else replace(control, desk=wanted)

    def events(before: Control, after: Control) -> list[Event]:
        names = sorted(name for name in parts if before.desk.get(name) != after.desk.get(name))
        return [Event(EventType.POLICY_CHANGED, now, details={"desk": ", ".join(names)})] if names else []

    return table.alter(change, events).desk


def declare_mask(table: QueueTable, clock: Clock, mask: object) -> Masking | None:
    """Record which values of its messages a queue hides, in one commit, where they are others than before; return the mask.

    Whatever is shown or written down from then on has none of them; failures that were recorded before are shown without them.

    :param mask: a path, or a list of paths; an empty one: nothing is hidden any more.
    Raises SettingError for what is no path.
    """
    masking = Masking.read(mask)
    if Masking.recorded(table.snapshot().control.desk) != masking:
        configure(table, clock, **{PART: None if masking is None else list(masking.paths)})
    return masking
