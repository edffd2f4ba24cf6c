"""Masking: the values of a queue's messages that are private, and bodies, properties and texts without them. Pure.

A mask is a list of paths: ``$.customer.email``, ``$.items[*].card``, ``$.cards[0]``, ``$['strange name']``, ``$.customer.*``, ``$`` (the whole body),
``properties.token``, ``properties.*``. A name looks into the elements of an array, too: ``$.items.card`` is ``$.items[*].card``.

What is hidden in a body is hidden in texts about its message as well, wherever it stands: as it is, as JSON and Python write it, and where a text was
cut in the middle of it. Short values (three characters and less, truth values) are hidden as whole words only. A body that is no JSON is hidden
whole, since it is not known what it holds, and so are the texts about its message.

Hidden values in texts: found wherever they stand, as they are, as JSON and Python write them, and where a text was cut. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Self
from urllib.parse import quote, quote_plus

from airflow_poison.values import json_text
from airflow_poison.values.errors import SettingError
from airflow_poison.values.json_text import Number, Pairs
from airflow_poison.values.texts import Plain

HIDDEN = "***"
"""What stands in the place of a value."""

_SHORT = 3
"""Values of so many characters and less are hidden only as whole words."""
_LEAST_CUT = 2
_MANY = 200
_CUT = re.compile(r"…|\.\.\.")
_FRAME = re.compile(r"""^[ \t]*File "[^"\n]*", line \d+(?:, in [^\n]*)?$""", re.MULTILINE)
_ESCAPE = re.compile(r"""(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(["'\\/bfnrt])""")
_SIGNS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LEVELS = 2
"""So often a text is written as JSON or by Python within another: a body, and the text of an error that shows it."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HiddenValues:
    """What is hidden of a message, or of several, as it may stand in texts about them.

    :param values: texts, numbers as they are written, truth values.
    :param known: every hidden value is among them; else whole texts are hidden.
    """

    __slots__ = ("_forms", "_index", "_known")

    def __init__(self, values: Iterable[object], *, known: bool = True) -> None:
        self._known = known
        self._forms: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {}
        self._index: dict[str, list[str]] = {}
        for value in values:
            self._add(value)

    @classmethod
    def of_all(cls, several: Iterable[HiddenValues]) -> HiddenValues:
        """Return the hidden values of several messages."""
        found = cls(())
        for each in several:
            found._known = found._known and each._known  # noqa: SLF001  (its own)
            found._forms.update(each._forms)  # noqa: SLF001  (its own)
        return found

    def hide(self, text: str) -> str:
        """Return a text without the values."""
        if not self._known:
            return HIDDEN if text else text
        return _without(text, self._places(text))

    def hide_trace(self, trace: str) -> str:
        """Return a trace without the values. Lines that name a place of the code stay as they are: they have no value, and group failures."""
        frames = [found.span() for found in _FRAME.finditer(trace)]
        if not self._known:
            return "".join(f"{trace[start:end]}\n" for start, end in frames)
        spans = [span for span in self._places(trace) if not any(start < span[1] and span[0] < end for start, end in frames)]
        return _without(trace, spans)

    def _add(self, value: object) -> None:
        if isinstance(value, bool):
            forms, find = {str(value), json.dumps(value)}, _whole_words
        elif isinstance(value, Number):
            forms, find = _forms_of_number(value), _whole_numbers
        else:
            forms, find = _forms_of_text(str(value)), _anywhere
        for form in forms:
            if form and form != HIDDEN:
                self._forms.setdefault(form, (_whole_words if len(form) <= _SHORT else find)(form))

    def _places(self, text: str) -> list[tuple[int, int]]:
        """Return where values stand in a text: as it is, and with its escapes resolved, which writers of JSON choose otherwise, once and twice."""
        spans, read = self._found(text), text
        at: Sequence[int] = range(len(text) + 1)
        for _ in range(_LEVELS):
            if "\\" not in read:
                break
            read, at = _unescaped(read, at)
            spans += [(at[start], at[end]) for start, end in self._found(read)]
        return spans

    def _found(self, text: str) -> list[tuple[int, int]]:
        forms = self._near(text)
        spans = [span for form in forms if form in text for span in self._forms[form](text)]
        for cut in _CUT.finditer(text):
            spans += self._around(text, *cut.span())
        return spans

    def _near(self, text: str) -> Iterable[str]:
        """Return forms that may be in a text: all, or of many those that begin as something in it does."""
        if len(self._forms) <= _MANY or _CUT.search(text):
            return self._forms
        if not self._index:
            for form in self._forms:
                self._index.setdefault(form[:_SHORT], []).append(form)
        beginnings = {text[place : place + size] for size in range(1, _SHORT + 1) for place in range(len(text) - size + 1)}
        return [form for beginning in beginnings & self._index.keys() for form in self._index[beginning]]

    def _around(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what stands of values before and behind a place where a text was cut."""
        for form in self._forms:
            if len(form) <= _SHORT:
                continue
            for size in range(min(len(form) - 1, start), _LEAST_CUT - 1, -1):
                if text.endswith(form[:size], 0, start):
                    yield start - size, start
                    break
            for size in range(min(len(form) - 1, len(text) - end), _LEAST_CUT - 1, -1):
                if text.startswith(form[-size:], end):
                    yield end, end + size
                    break


def _unescaped(text: str, at: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Return a text with JSON's escapes resolved, and where each of its characters began.

    :param at: where each character of the text began in another one, and its end.
    """
    parts, places, end = list[str](), list[int](), 0
    for found in _ESCAPE.finditer(text):
        begin = found.start()
        pair, code, sign = found.groups()
        made = json.loads(f'"{pair}"') if pair else chr(int(code, 16)) if code else _SIGNS.get(sign, sign)
        parts += [text[end:begin], made]
        places += [*at[end:begin], at[begin]]
        end = found.end()
    return "".join([*parts, text[end:]]), [*places, *at[end:]]


def _forms_of_text(value: str) -> set[str]:
    """Return how a text may stand in another: as it is, its lines, as JSON and Python write it, one in the other, as bytes, in an address."""
    forms = {value, value.strip(), *(line.strip() for line in value.splitlines()), _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)}
    forms.add(value.replace("\r\n", "\n"))
    written = {json.dumps(value)[1:-1], encode_basestring(value)[1:-1], repr(value)[1:-1]}
    forms |= written | {repr(form)[1:-1] for form in written}
    try:
        forms |= {repr(value.encode())[2:-1], quote(value, safe=""), quote_plus(value)}
    except UnicodeEncodeError:
        forms.add(value.encode("utf-8", "replace").decode())
    return forms


def _forms_of_number(value: str) -> set[str]:
    """Return how a number may stand in a text: with its digits, and as Python writes it."""
    forms = {str(value)}
    try:
        number = float(value)
        forms.add(repr(number))
        if number.is_integer():
            whole = int(value) if value.lstrip("-").isdigit() else int(number)
            forms |= {str(whole), f"{whole:,}"}
    except (ValueError, OverflowError):
        pass
    return forms


def _anywhere(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    def places(text: str) -> Iterator[tuple[int, int]]:
        start = text.find(form)
        while start >= 0:
            yield start, start + len(form)
            start = text.find(form, start + 1)

    return places


def _whole_words(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    return _bounded(form, r"\w")


def _whole_numbers(form: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    return _bounded(form, r"\d")


def _bounded(form: str, of: str) -> Callable[[str], Iterator[tuple[int, int]]]:
    def places(text: str) -> Iterator[tuple[int, int]]:
        return (found.span() for found in re.finditer(f"(?<!{of}){re.escape(form)}(?!{of})", text))

    return places


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Return a text with one mark in the place of spans that touch or overlap."""
    parts, end = list[str](), 0
    for start, stop in sorted(spans):
        if start > end or not parts:
            parts += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*parts, text[end:]])


PART, SINCE = "mask", "mask_since"
"""The names among the settings of a queue's desk: the paths, and since when they are what they are (ISO 8601)."""
EDITS = "poison.edits"
"""The property with what people have changed in a message, the oldest first: JSON objects with the ``body`` as it was before (Base64; null: the
same), ``properties`` as they were (null: not there), and at last the ``plan``."""

_PROPERTIES = "properties"
_EVERY = -1
_STEP = re.compile(r"""\.(?P<name>[^.\[\]'"*\s]+)|\.(?P<all>\*)|\[(?P<each>\*)\]|\[(?P<number>\d+)\]|\[(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\]""")
_MOST_PATHS = 100

Step = str | int
"""A name in an object, a number in an array, or -1: every element."""


@dataclass(frozen=True, slots=True)
class Masking(Plain):
    """Which values of a queue's messages are hidden. Raises SettingError for what is no path."""

    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what is no path."""
        if not self.paths or len(self.paths) > _MOST_PATHS:
            raise SettingError(PART, list(self.paths), f"1 to {_MOST_PATHS} paths")
        for path in self.paths:
            _parsed_path(path)

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Return the mask that a DAG file or a control row gives: a path, or a list of paths; None for none. Raises SettingError."""
        if value is None:
            return None
        paths = [value] if isinstance(value, str) else value
        if not isinstance(paths, list | tuple) or not all(isinstance(each, str) for each in paths):
            raise SettingError(PART, value, "a list of paths, for example ['$.card', '$.customer.email', 'properties.token']")
        return cls(tuple(dict.fromkeys(paths))) if paths else None

    @classmethod
    def recorded(cls, desk: Mapping[str, object]) -> Self | None:
        """Return the mask among the settings of a queue's desk."""
        return cls.read(desk.get(PART))

    @property
    def hides_bodies(self) -> bool:
        """Whether a path leads into bodies."""
        return any(path.startswith("$") for path in self.paths)

    @property
    def property_names(self) -> frozenset[str | None]:
        """The names of hidden properties; None: all are."""
        steps = [step for where, *names in map(_parsed_path, self.paths) if where == "" for step in names]
        return frozenset(step if isinstance(step, str) else None for step in steps)

    def hides_property(self, name: str) -> bool:
        """Whether a property is hidden."""
        return not {name, None}.isdisjoint(self.property_names)

    def body(self, body: bytes) -> bytes:
        """Return a body with hidden values; one that is no JSON is hidden whole. An empty one stays."""
        if not body or not self.hides_bodies:
            return body
        try:
            text = body.decode(json.detect_encoding(body))
            tree: object = None if _MINUS_ZERO.search(text) else _QUICK.decode(text)
            return self._masked(body, []) if tree is None else _ENCODER.encode(self._without(tree, [])).encode("utf-8", "backslashreplace")
        except (ValueError, RecursionError):
            return self._masked(body, [])

    def properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return properties with hidden values; in the edits that people made, too."""
        shown = {name: HIDDEN if self.hides_property(name) else text for name, text in properties.items()}
        if edits := edits_of(properties):
            shown[EDITS] = json.dumps([self._edit(entry) for entry in edits])
        elif EDITS in properties and self.hides_bodies:  # a sender has written it: it may hold a body
            shown[EDITS] = HIDDEN
        return shown

    def values(self, body: bytes, properties: Mapping[str, str]) -> HiddenValues:
        """Return what is hidden of a message: for the texts about it."""
        found: list[object] = [text for name, text in properties.items() if self.hides_property(name)]
        edits = edits_of(properties)
        if not edits and EDITS in properties and self.hides_bodies:
            found.append(properties[EDITS])
        bodies = [body, *(base64.b64decode(entry["body"]) for entry in edits if entry["body"] is not None)]
        shown = [self._masked(each, found) for each in bodies]
        for entry in edits:
            found += [text for name, text in entry[_PROPERTIES].items() if text is not None and self.hides_property(name)]
        is_read = HIDDEN.encode() not in shown and all(json_text.encoding_of(each)[1] == "utf-8" for each in bodies)  # NUL stands in others' values
        return HiddenValues(_leaves(found), known=is_read or not self.hides_bodies)

    def _masked(self, body: bytes, found: list[object]) -> bytes:
        if not body or not self.hides_bodies:
            return body
        try:
            return json_text.written(self._without(json_text.tree(body), found)).encode()
        except (ValueError, RecursionError):
            found.append(body.decode("utf-8", "replace"))
            return HIDDEN.encode()

    def _without(self, tree: object, found: list[object]) -> object:
        """Return a body without hidden values, which are added to what was found."""
        for path in self.paths:
            where, *steps = _parsed_path(path)
            if where == "$":
                tree = _hidden(tree, steps, found, is_top=True)
        return tree

    def _edit(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        body, former = entry["body"], entry[_PROPERTIES]
        shown = None if body is None else base64.b64encode(self.body(base64.b64decode(body))).decode()
        hidden = {name: HIDDEN if text is not None and self.hides_property(name) else text for name, text in former.items()}
        return {**entry, "body": shown, _PROPERTIES: hidden}


def checked_mask(mask: Sequence[str] | str | None) -> Sequence[str] | str | None:
    """Return a mask as a DAG file gives it. Raises SettingError for what is no path."""
    Masking.read(mask)
    return mask


def edits_of(properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what people have changed in a message, the oldest first; nothing where a sender has written the property, in any other form."""
    text = properties.get(EDITS, "")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    is_ours = isinstance(found, list) and all(map(_is_edit, found)) and json.dumps(found) == text
    return found if is_ours else []


def _is_edit(entry: object) -> bool:
    if not isinstance(entry, dict) or list(entry) != ["body", _PROPERTIES, "plan"]:
        return False
    body, former = entry["body"], entry[_PROPERTIES]
    try:
        is_body = body is None or base64.b64encode(base64.b64decode(body, validate=True)).decode() == body
    except (ValueError, TypeError):
        return False
    return is_body and isinstance(entry["plan"], str) and isinstance(former, dict) and all(isinstance(each, str | None) for each in former.values())


@lru_cache(1_000)
def _parsed_path(path: str) -> tuple[Step, ...]:
    """Return where a path begins (``$``, or nothing for properties) and its steps. Raises SettingError."""
    wanted = "$.name, $.a.b, $.items[*].card, $.cards[0], $['a name'], $.any.*, $, properties.name or properties.*"
    is_property = path.startswith(_PROPERTIES)
    place, steps = len(_PROPERTIES) if is_property else 1, list[Step]()
    if not (is_property or path.startswith("$")):
        raise SettingError(PART, path, wanted)
    if is_property and path[place : place + 1] == "." and path[place + 1 :]:
        name = path[place + 1 :]  # names of properties may have dots
        return "", _EVERY if name == "*" else name
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise SettingError(PART, path, wanted)
        name = step["name"] or step["quoted"]
        steps.append(name if name is not None else _EVERY if step["number"] is None else int(step["number"]))
        place = step.end()
    if is_property and (len(steps) != 1 or not isinstance(steps[0], str)):
        raise SettingError(PART, path, wanted)
    return ("" if is_property else "$", *steps)


# Bodies are written again as they were but for spaces (``json_text``). Nearly all come out the same when Python's own JSON reads and writes them,
# which is many times faster; what would come out otherwise is refused by it.


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(pairs)
    return found


def _exact(digits: str) -> float:
    number = float(digits)
    if repr(number) != digits:
        raise ValueError(digits)
    return number


_QUICK = json.JSONDecoder(object_pairs_hook=_once, parse_float=_exact)
_MINUS_ZERO = re.compile(r"-0(?![\d.eE])")
_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _hidden(value: object, steps: list[Step], found: list[object], *, is_top: bool = False) -> object:
    """Return a value without what a path leads to, which is added to what was found.

    :param is_top: it is the body, or an element of one that is an array: a bare value there is hidden, since it has no name.
    """
    if not steps or (is_top and value is not None and not isinstance(value, dict | list)):
        found.append(value)
        return HIDDEN
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict):
        for name in [*value] if step == _EVERY else {step} & value.keys():
            value[name] = _hidden(value[name], rest, found)
    elif isinstance(value, Pairs):
        value[:] = [(name, _hidden(each, rest, found) if step in (_EVERY, name) else each) for name, each in value]
    elif isinstance(value, list):  # a name looks into each element
        into = steps if isinstance(step, str) else rest
        meant = isinstance(step, str) or step == _EVERY
        value[:] = [_hidden(each, into, found, is_top=is_top) if meant or step == place else each for place, each in enumerate(value)]
    return value


def _leaves(values: Sequence[object]) -> Iterator[object]:
    """Yield the texts, numbers and truth values in values, however deeply they are nested."""
    left = [*values]
    while left:
        value = left.pop()
        if isinstance(value, Pairs):
            left += (each for _, each in value)
        elif isinstance(value, list):
            left += value
        elif value is not None:
            yield value
