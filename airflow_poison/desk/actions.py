"""What people can do with selected messages: put back, move, send to another queue, remove, edit.

Selections, actions and canaries as Python, DAG files and rendered templates give them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.desk.selection import Selection, check_text
from airflow_poison.passes.declaration import Canary
from airflow_poison.rules.settings import put
from airflow_poison.values import json_text
from airflow_poison.values.errors import SettingError
from airflow_poison.values.events import EventType
from airflow_poison.values.masking import EDITS, HIDDEN, Masking, edits_of
from airflow_poison.values.schema import MAX_BODY_BYTES, OWN_PROPERTIES, SubQueue, is_reserved
from airflow_poison.values.texts import Plain, nearest

if TYPE_CHECKING:
    from collections.abc import Callable


_SENDERS = frozenset(SubQueue) - {SubQueue.TRANSMISSION}
_DEEPEST = 100
"""So deeply may a patch be nested: a plan with it is read, shown and written where little of the stack may be left."""


class Verb(StrEnum):
    """Actions on messages."""

    PUT_BACK = "put_back"
    MOVE = "move"
    SEND_TO = "send_to"
    REMOVE = "remove"
    EDIT = "edit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAction(Plain):
    """What is to become of messages. Raises SettingError for what cannot be done.

    :param target: of ``move``: ``main`` or ``poison``; of ``edit``: ``main``, where the edited messages go in the same commit, or empty: they stay;
        of ``send_to``: a queue, empty for the one that each message came from.
    :param patch: of ``edit``: a JSON merge patch for each body (RFC 7396), or its text, whose numbers keep their digits.
    :param body: of ``edit``: the whole new body, as text.
    :param function: of ``edit``: ``module:name`` of a function that takes a body's bytes and returns the new ones.
    :param properties: of ``edit``: new values of properties; None removes one.
    """

    verb: Verb
    target: str = ""
    patch: Mapping[str, Any] | str | None = None
    body: str | None = None
    function: str = ""
    properties: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what does not belong to the verb."""
        if isinstance(self.patch, str):
            put(self, patch=_patch_of(self.patch))
        edits = [name for name in ("patch", "body", "function") if getattr(self, name) not in (None, "")]
        if self.verb is Verb.EDIT:
            _check_body(self.body)
            if len(edits) > 1 or not (edits or self.properties):
                raise SettingError("edit", edits, "one of patch, body and function, or properties")
            if self.patch is not None:
                _check_patch(self.patch)
            check_text("function", self.function)
            _check_properties(self.properties)
        elif edits or self.properties:
            raise SettingError((edits or ["properties"])[0], self.verb.value, f"verb={Verb.EDIT.value!r}")
        if self.verb is Verb.MOVE and self.target not in {SubQueue.MAIN, SubQueue.POISON}:
            raise SettingError("target", self.target, f"{SubQueue.MAIN} or {SubQueue.POISON}")
        if self.target and self.verb not in {Verb.MOVE, Verb.SEND_TO} and (self.verb, self.target) != (Verb.EDIT, SubQueue.MAIN):
            expected = f"{SubQueue.MAIN}, or nothing" if self.verb is Verb.EDIT else "nothing"
            raise SettingError("target", self.target, f"{expected} for verb={self.verb.value!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the action that plain values describe."""
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise SettingError("action", name, f"{', '.join(sorted(known))} (did you mean {nearest(str(name), known)!r}?)")
        try:
            verb = Verb(str(values.get("verb", "")))
        except ValueError:
            raise SettingError("verb", values.get("verb"), ", ".join(Verb)) from None
        return cls(**{**values, "verb": verb})

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain values; a patch with numbers that a float does not write as they are is JSON text."""
        given = {each.name: getattr(self, each.name) for each in fields(self)} | {"patch": _plain_patch(self.patch)}
        given |= {"properties": given["properties"] or None}  # none of them are nothing; a patch without fields is one
        return {name: value for name, value in given.items() if value not in (None, "")} | {"verb": self.verb.value}

    def without_values(self, masking: Masking | None) -> PlanAction:
        """Return it as people see it who may not see what a queue hides."""
        if masking is None:
            return self
        patch = None if self.patch is None else json_text.values_to_write(masking.body(json_text.written(self.patch).encode()))
        return replace(
            self,
            patch=patch if patch is None or isinstance(patch, dict) else {HIDDEN: HIDDEN},
            body=None if self.body is None else masking.body(self.body.encode()).decode(),
            properties={name: HIDDEN if text is not None and masking.hides_property(name) else text for name, text in self.properties.items()},
        )

    @property
    def places(self) -> frozenset[SubQueue]:
        """The sub-queues whose messages it can be done to (spec WCF-28 for what is put back)."""
        match self.verb:
            case Verb.PUT_BACK:
                return frozenset({SubQueue.POISON})
            case Verb.MOVE:
                return _SENDERS - {SubQueue(self.target)}
            case Verb.REMOVE:
                return frozenset(SubQueue)
            case Verb.EDIT if self.target:
                return frozenset({SubQueue.RETRY, SubQueue.POISON})
            case Verb.SEND_TO | Verb.EDIT:
                return _SENDERS

    @property
    def place(self) -> SubQueue | None:
        """The sub-queue that messages come to; None where they stay or leave."""
        match self.verb:
            case Verb.PUT_BACK:
                return SubQueue.MAIN
            case Verb.MOVE | Verb.EDIT if self.target:
                return SubQueue(self.target)
            case _:
                return None

    @property
    def event(self) -> EventType:
        """What is recorded of each message."""
        match self.verb:
            case Verb.PUT_BACK | Verb.MOVE:
                return EventType.RETURNED if self.place is SubQueue.MAIN else EventType.MOVED_POISON
            case Verb.SEND_TO:
                return EventType.REQUEUED
            case Verb.REMOVE:
                return EventType.DROPPED
            case Verb.EDIT:
                return EventType.EDITED


def _patch_of(text: str) -> Any:
    try:
        return json_text.values_to_write(text)
    except json_text.JsonError as error:
        raise SettingError("patch", text, f'JSON text of an object, for example {{"currency": "EUR"}}; {error}') from error


def _check_patch(patch: object) -> None:
    if not isinstance(patch, dict):
        raise SettingError("patch", patch, "a JSON object, for example {'currency': 'EUR'}")
    try:
        json_text.written(patch)
    except json_text.JsonError as error:
        raise SettingError("patch", patch, f"values that JSON has; {error}") from error
    level: list[Any] = [patch]
    for _ in range(_DEEPEST):
        level = [inner for each in level if isinstance(each, dict | list) for inner in (each.values() if isinstance(each, dict) else each)]
    if any(isinstance(each, dict | list) for each in level):
        raise SettingError("patch", f"of more than {_DEEPEST} levels", f"at most {_DEEPEST} objects and lists in each other")


def _plain_patch(patch: Mapping[str, Any] | str | None) -> Any:
    """Return a patch as plain values; as JSON text where a float would not write a number as it is."""
    if patch is None:
        return None
    text = json_text.written(patch)
    natural = json_text.natural_values(text)
    return natural if json.dumps(natural, default=str, ensure_ascii=False) == text else text


def _check_body(body: object) -> None:
    if body == "":
        raise SettingError("body", body, f"the whole new body, which is not empty; verb={Verb.REMOVE.value!r} takes messages out")
    check_text("body", "" if body is None else body)


def _check_properties(properties: object) -> None:
    if not isinstance(properties, Mapping):
        raise SettingError("properties", properties, "texts by name, for example {'attempt': '5'}; None removes one")
    for name, text in properties.items():
        check_text("properties", name)
        check_text(f"properties[{name!r}]", "" if text is None else text)
        if is_reserved(name):
            raise SettingError("properties", name, f"other names: those that begin with {OWN_PROPERTIES!r} are the product's own")


# Edits ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edited:
    """A message's content: its body and properties."""

    body: bytes
    properties: Mapping[str, str]


class UnfitError(ValueError):
    """A body that an edit cannot be made to; it stays as it is."""


def editor(action: PlanAction, plan: str) -> Callable[[Edited], Edited]:
    """Return what makes an edit, which remembers what was there before in the property ``poison.edits``.

    It raises UnfitError, and nothing else, for a message that it cannot be made to. Raises SettingError for a function that cannot be imported.
    """
    change = _body_editor(action)

    def edit(before: Edited) -> Edited:
        try:
            body = change(before.body)
        except UnfitError:
            raise
        except Exception as error:  # whatever one message makes of an edit, the others are edited
            raise UnfitError(f"{type(error).__name__}: {error}") from error
        if len(body) > MAX_BODY_BYTES:
            raise UnfitError(f"the new body has {len(body):,} bytes; at most {MAX_BODY_BYTES:,} are allowed")
        properties = {name: value for name, value in {**before.properties, **action.properties}.items() if value is not None}
        edits, was = edits_of(before.properties), {name: before.properties.get(name) for name in action.properties}
        if not edits and EDITS in before.properties:  # it came with the message
            was[EDITS] = before.properties[EDITS]
        entry = {"body": base64.b64encode(before.body).decode() if body != before.body else None, "properties": was, "plan": plan}
        return Edited(body, {**properties, EDITS: json.dumps([*edits, entry])})

    return edit


def unedited(now: Edited, plan: str) -> Edited:
    """Return a message as it was before a plan's edit. Raises UnfitError when that was not its last one."""
    edits = edits_of(now.properties)
    if not edits or edits[-1]["plan"] != plan:
        raise UnfitError(f"its last edit is none of plan {plan}")
    entry, earlier = edits[-1], edits[:-1]
    before = {**now.properties, EDITS: json.dumps(earlier) if earlier else None, **entry["properties"]}
    body = now.body if entry["body"] is None else base64.b64decode(entry["body"])
    return Edited(body, {name: value for name, value in before.items() if value is not None})


def last_edit(plan: str) -> str:
    """Return the end of the property of a message whose last edit is a plan's."""
    return f'"plan": {json.dumps(plan)}}}]'


def original_body(body: bytes, properties: Mapping[str, str]) -> bytes | None:
    """Return the body that was sent; None for a message whose body was not edited."""
    first = next((entry["body"] for entry in edits_of(properties) if entry["body"] is not None), None)
    original = None if first is None else base64.b64decode(first)
    return None if original == body else original


def _body_editor(action: PlanAction) -> Callable[[bytes], bytes]:
    if action.body is not None:
        new = action.body.encode()
        return lambda _body: new
    if action.patch is not None:
        patch: Any = action.patch
        return lambda body: _patched(body, patch)
    if action.function:
        return _called(_imported(action.function), action.function)
    return lambda body: body


def _patched(body: bytes, patch: Mapping[str, Any]) -> bytes:
    try:
        return json_text.patched(body, patch)
    except json_text.JsonError as error:
        raise UnfitError(f"the body cannot be patched: {error}") from error


def _imported(name: str) -> Callable[[bytes], object]:
    module, _, attribute = name.partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a module raises that is imported
        what = f"'module:name' of a function that can be imported here ({type(error).__name__}: {error})"
        raise SettingError("function", name, what) from error
    if not callable(found):
        raise SettingError("function", name, "a function that takes a body's bytes and returns the new ones")
    return found


def _called(function: Callable[[bytes], object], name: str) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        try:
            new = function(body)
        except BaseException as error:
            of_airflow = not isinstance(error, Exception) and type(error).__module__.startswith("airflow.")
            if of_airflow or isinstance(error, KeyboardInterrupt):  # the time of the task, or a person, ends the plan
                raise
            raise UnfitError(f"{name} raised {type(error).__name__}: {error}") from error
        if isinstance(new, str):
            return new.encode()
        if not isinstance(new, bytes):
            raise UnfitError(f"{name} returned {type(new).__name__}; expected bytes or text")
        return new

    return change


def selection_of(given: object, action: PlanAction | None = None) -> Selection:
    """Return the selection of a dict, JSON text of one, or nothing: all poison. Raises SettingError.

    :param action: what is done with its messages. A removal refuses an empty text and None, as templates and tasks have for what is not there: they
        are no conditions.
    """
    if isinstance(given, Selection):
        return given
    values = _values("selection", given, "conditions by name, for example {'error_type': 'KeyError'}")
    if action is not None and action.verb is Verb.REMOVE:
        if isinstance(given, str) and not values and "{" not in given:
            raise SettingError("selection", given, "conditions by name, and {} for all poison: this is none, and all poison would be removed")
        for name, value in values.items():
            if value == "" or (value is None and name != "sub_queue"):  # None there is everywhere
                raise SettingError(name, value, f"a condition, or no {name!r}: this is none, and messages of all others would be removed")
    return Selection.from_dict(values)


def action_of(given: object) -> PlanAction:
    """Return the action of a verb, a dict, or JSON text of one. Raises SettingError."""
    if isinstance(given, PlanAction):
        return given
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        return PlanAction.from_dict({"verb": given.strip().replace("-", "_")})
    return PlanAction.from_dict(_values("action", given, "a verb, or a dict such as {'verb': 'move', 'target': 'main'}"))


def canary_of(given: object) -> Canary | None:
    """Return the canary of a number, a dict, or text of one; None for nothing. Raises SettingError."""
    expected = "a number of messages, or a dict such as {'messages': 100, 'share': 0.95}"
    if given is None or given == "" or isinstance(given, Canary):
        return given or None  # type: ignore[return-value]  # a canary, or nothing
    value = _json("canary", given, expected) if isinstance(given, str) else given
    values: Mapping[str, Any] = value if isinstance(value, Mapping) else {"messages": value}
    number, share = values.get("messages"), values.get("share", 1.0)
    if set(values) - {"messages", "share"} or not isinstance(number, int) or isinstance(number, bool) or not isinstance(share, int | float):
        raise SettingError("canary", given, expected)
    return Canary(number, float(share))


def _values(name: str, given: object, expected: str) -> Mapping[str, Any]:
    value = _json(name, given, expected) if isinstance(given, str) and given.strip() else given
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise SettingError(name, given, expected)
    return value


def _json(name: str, given: str, expected: str) -> object:
    try:
        found: object = json_text.natural_values(given)
    except json_text.JsonError as error:
        raise SettingError(name, given, f"{expected}, or JSON text of that; {error}") from None
    return found
