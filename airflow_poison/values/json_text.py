"""JSON of message bodies, exactly: numbers keep their digits, names that stand twice are seen, and a patch changes no other text.

Python's own ``json.loads`` reads ``12345678901234567.89`` as ``12345678901234568.0``, ``1e400`` as infinity, and keeps one of two values of the same
name. So every body is read and written here.

JSON Schema on exact numbers: jsonschema's own classes compute with floats, in which 19.99 is no multiple of 0.01.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jsonschema import ValidationError


MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, and the encoding that follows; the mark of UTF-32 begins with the one of UTF-16."""
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonError(json.JSONDecodeError):
    """A text that is no JSON, or a value that JSON does not have. It is what handlers expect of Python's own JSON, but for places in the text."""

    def __init__(self, why: str) -> None:
        ValueError.__init__(self, why)
        self.msg, self.doc, self.pos, self.lineno, self.colno = why, "", 0, 1, 1

    def __reduce__(self) -> tuple[type[JsonError], tuple[str]]:
        return type(self), (self.msg,)


class Number(str):
    """A number as it is written."""

    __slots__ = ()


class Pairs(list[tuple[str, object]]):
    """The names and values of an object, in their order; a name may stand twice."""

    __slots__ = ()


def decoded(body: bytes) -> str:
    """Return the text of a body: UTF-8, UTF-16 or UTF-32, without a byte order mark. Raises JsonError."""
    mark, codec = encoding_of(body)
    try:
        return body[len(mark) :].decode(codec)
    except UnicodeDecodeError as error:
        raise JsonError(f"byte {len(mark) + error.start} is no {codec.upper()}") from error


def tree(body: bytes | str) -> object:
    """Return a body as ``Pairs``, lists, texts, ``Number``, truth values and None. NaN and infinity are numbers here. Raises JsonError."""
    return _parsed(_TREE, body)


def values(body: bytes | str) -> Any:
    """Return a body as plain values: whole numbers are ``int``, others ``Decimal``.

    Raises JsonError: also for NaN and infinity, and for a name that stands twice in one object, since one of its values would be lost.
    """
    return _parsed(_VALUES, body)


def values_to_write(body: bytes | str) -> Any:
    """Return a body as ``values`` does, but ``-0`` is a ``Decimal``: Python's own 0 has no sign. What is written again is the same number."""
    return _parsed(_TO_WRITE, body)


def natural_values(body: bytes | str) -> Any:
    """Return a body as Python programs expect it: as ``values``, but numbers that a float keeps are floats.

    ``19.99`` is a float; ``12345678901234567.89`` and ``1e400`` are ``Decimal``: a float would be another number.
    """
    return _parsed(_NATURAL, body)


def syntax_error(body: bytes) -> str | None:
    """Return why a body is no JSON; None: it is. A name may stand twice."""
    if not unlike_json([body]):
        return None
    try:
        _parsed(_SYNTAX, body)
    except JsonError as error:
        return str(error)
    return None


def unlike_json(bodies: Sequence[bytes]) -> list[int]:
    """Return the places of bodies of which ``syntax_error`` has to say whether they are JSON: of all that are none, and of a few others."""
    check, refused = _quick()
    found = list[int]()
    for place, body in enumerate(bodies):
        try:
            check(body)
        except refused:
            found.append(place)
    return found


def written(value: object) -> str:
    """Return a tree or plain values as JSON text, each number with all its digits. Raises JsonError."""
    try:
        return _written(value)
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error


def patched(body: bytes, patch: Mapping[str, object]) -> bytes:
    """Return a body with a merge patch (RFC 7396), in which the text of all other fields is as it was.

    A field that stands twice is changed in both places. Raises JsonError for a body that is no JSON.
    """
    mark, codec = encoding_of(body)
    text = decoded(body)
    _parsed(_SYNTAX, text)  # what the patch passes over is JSON, too
    begin = _behind_space(text, 0)
    end = len(text.rstrip(" \t\n\r"))
    try:
        new = text[:begin] + _merged(text[begin:end], patch) + text[end:]
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    return mark + new.encode(codec)


read_json = values_to_write
"""The public name of ``values_to_write``: for functions that edit bodies."""
write_json = written
"""The public name of ``written``, which returns text."""


# Reading


def encoding_of(body: bytes) -> tuple[bytes, str]:
    """Return the byte order mark of a body, and its encoding."""
    if body[:1] < b"\x80" and b"\0" not in body[:4]:  # nearly all of them
        return b"", "utf-8"
    for mark, codec in MARKS:
        if body.startswith(mark):
            return mark, codec
    return b"", json.detect_encoding(body)


@cache
def _quick() -> tuple[Callable[[bytes], object], tuple[type[Exception], ...]]:
    """Return what passes most bodies that are JSON, and no others, and what it raises: msgspec, where it is installed."""
    try:
        import msgspec
    except ImportError:
        return partial(_parsed, _SYNTAX), (JsonError,)
    passed_over = msgspec.json.Decoder(msgspec.Raw).decode

    def check(body: bytes) -> object:
        if not body.isascii():
            body.decode()  # msgspec does not look into texts that it passes over
        return passed_over(body)

    return check, (msgspec.MsgspecError, ValueError, RecursionError)


def _parsed(decoder: json.JSONDecoder, body: bytes | str) -> Any:
    text = decoded(body) if isinstance(body, bytes) else body
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    except JsonError:
        raise
    except ArithmeticError as error:
        raise JsonError("a number has an exponent of more than 18 digits") from error
    except ValueError as error:
        raise JsonError(str(error)) from error


def _refuse_constant(name: str) -> object:
    raise JsonError(f"JSON has no {name}")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise JsonError(f"the name {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python reads at most 4,300 digits
        raise JsonError(f"a number has {len(digits):,} digits") from None


def _signed(digits: str) -> int | Decimal:
    return Decimal(digits) if digits == "-0" else _whole(digits)


def _natural(digits: str) -> float | Decimal:
    number, exact = float(digits), Decimal(digits)
    return number if math.isfinite(number) and Decimal(repr(number)) == exact else exact


def _nothing(_digits: str) -> None:
    return None


_VALUES = json.JSONDecoder(object_pairs_hook=_once, parse_int=_whole, parse_float=Decimal, parse_constant=_refuse_constant)
_TO_WRITE = json.JSONDecoder(object_pairs_hook=_once, parse_int=_signed, parse_float=Decimal, parse_constant=_refuse_constant)
_NATURAL = json.JSONDecoder(object_pairs_hook=_once, parse_int=_whole, parse_float=_natural, parse_constant=_refuse_constant)
_SYNTAX = json.JSONDecoder(parse_int=_nothing, parse_float=_nothing, parse_constant=_refuse_constant)
_TREE = json.JSONDecoder(object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=Number)


# Writing


def _written(value: object) -> str:  # noqa: PLR0911  (one line for each type)
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case Number():
            return str(value)
        case str():
            return _text(value)
        case int():
            return _digits(value)
        case float() if math.isfinite(value):
            return repr(float(value))
        case Decimal() if value.is_finite():
            return str(value)
        case Pairs():
            return _object(iter(value))
        case dict():
            return _object(iter(value.items()))
        case list() | tuple():
            return "[" + ", ".join(map(_written, value)) + "]"
        case _:
            raise JsonError(f"JSON has no {value if isinstance(value, float | Decimal) else type(value).__name__}")


def _object(pairs: Iterator[tuple[object, object]]) -> str:
    return "{" + ", ".join(f"{_name(name)}: {_written(each)}" for name, each in pairs) + "}"


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise JsonError(f"names of JSON are text, not {type(name).__name__}")
    return _text(name)


def _text(text: str) -> str:
    """Return a text in quotes; half of a surrogate pair, which UTF-8 cannot hold, makes it one of escapes."""
    return encode_basestring(text) if text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text) else encode_basestring_ascii(text)


def _digits(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:  # Python writes at most 4,300 digits
        raise JsonError("a number has more than 4,300 digits") from None


# Patching


def _merged(text: str, patch: object) -> str:
    if not isinstance(patch, dict):
        return written(patch)
    if not text.startswith("{"):
        text = "{}"
    members = list(_members(text))
    space, colon = (text[1 : members[0].begin], text[members[0].end_of_name : members[0].value]) if members else ("", ": ")
    comma = text[members[0].end : members[1].begin] if len(members) > 1 else "," + (space or " " * colon.endswith(" "))
    parts: list[str] = []
    for number, member in enumerate(members):
        new = member.with_patch(text, patch) if member.name in patch else text[member.begin : member.end]
        if new is not None:
            parts.append((text[members[number - 1].end : member.begin] if parts else space) + new)
    there = {member.name for member in members}
    for name, value in patch.items():
        if value is not None and name not in there:
            parts.append((comma if parts else space) + _name(name) + colon + _merged("", value))
    return "{" + "".join(parts) + (text[members[-1].end : -1] if members else "") + "}"


class _Member:
    """Where a name and its value stand in the text of an object."""

    __slots__ = ("begin", "end", "end_of_name", "name", "value")

    def __init__(self, name: str, begin: int, end_of_name: int, value: int, end: int) -> None:
        self.name, self.begin, self.end_of_name, self.value, self.end = name, begin, end_of_name, value, end

    def with_patch(self, text: str, patch: Mapping[str, object]) -> str | None:
        """Return the text of the member with a patch; None: it is removed."""
        new = patch[self.name]
        return None if new is None else text[self.begin : self.value] + _merged(text[self.value : self.end], new)


def _members(text: str) -> Iterator[_Member]:
    place = _behind_space(text, 1)
    while text[place] != "}":
        begin = place
        name, end_of_name = _scan(text, begin)
        value = _behind_space(text, _behind_space(text, end_of_name) + 1)
        _, end = _scan(text, value)
        yield _Member(name, begin, end_of_name, value, end)
        place = _behind_space(text, end)
        if text[place] == ",":
            place = _behind_space(text, place + 1)


def _behind_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None, "it may be empty"
    return found.end()


def _scan(text: str, place: int) -> tuple[Any, int]:
    """Return the value that begins at a place, and its end; of numbers the end alone."""
    return _SYNTAX.raw_decode(text, place)


_DECIMAL = re.compile(r"Decimal\('([^']*)'\)")


def words(error: ValidationError) -> str:
    """Return what an error says, with numbers as JSON writes them."""
    return _DECIMAL.sub(r"\1", error.message)


@cache
def exact(kind: Any) -> Any:
    """Return a dialect of JSON Schema whose numbers are ``int`` and ``Decimal``."""
    from jsonschema import ValidationError
    from jsonschema.validators import extend

    def multiple_of(validator: Any, of: int | Decimal, instance: object, _schema: object) -> Iterator[ValidationError]:
        if validator.is_type(instance, "number") and not _is_multiple(Decimal(cast("int | Decimal", instance)), Decimal(of)):
            yield ValidationError(f"{instance!r} is not a multiple of {of!r}")

    checker = kind.TYPE_CHECKER
    if checker.is_type(1.0, "integer"):  # not in the oldest dialects
        checker = checker.redefine("integer", lambda _checker, value: _is_whole(value))
    names = [name for name in ("multipleOf", "divisibleBy") if name in kind.VALIDATORS]
    return extend(kind, dict.fromkeys(names, multiple_of), type_checker=checker)


def _is_whole(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, Decimal) and value == value.to_integral_value())


def _is_multiple(number: Decimal, of: Decimal) -> bool:
    """Say whether a number is a multiple of another, whatever their digits and exponents."""
    (_, digits, exponent), (_, of_digits, of_exponent) = number.as_tuple(), of.as_tuple()
    whole, of_whole = (int(Decimal((0, each, 0))) for each in (digits, of_digits))
    shift = cast("int", exponent) - cast("int", of_exponent)
    if shift >= 0:
        return whole * pow(10, shift, of_whole) % of_whole == 0
    return whole == 0 or (-shift <= len(digits) and whole % (of_whole * 10**-shift) == 0)
