"""Schemas as DDL text, as Spark reads them (``carrier string, flight int``), parsed to Arrow without a JVM; checked without Arrow, for DAG files."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_poison.values.errors import SettingError
from airflow_poison.values.libraries import pa
from airflow_poison.values.texts import folded, nearest

MAX_PRECISION = 38
_DEFAULT_PRECISION = 10
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<word>\w+)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>\S))", re.DOTALL)
_NAMES = {
    "boolean": "boolean",
    "byte": "byte",
    "tinyint": "byte",
    "short": "short",
    "smallint": "short",
    "int": "int",
    "integer": "int",
    "long": "long",
    "bigint": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "void": "void",
}
"""Spark's names of types that have no parts; the second is ours for types that are the same."""
_DECIMALS = ("decimal", "dec", "numeric")
_BEHIND = 6
"""So many digits behind its point a decimal keeps where its digits before it are too many."""
_TYPES = (*_NAMES, "decimal(p,s)", "array<type>", "map<key,value>", "struct<name: type, …>")
_ELSEWHERE = {
    "char": "write string: no column keeps the length",
    "character": "write string: no column keeps the length",
    "varchar": "write string: no column keeps the length",
    "interval": "write long for a number of seconds, or string",
    "variant": "write string for a text of JSON",
}
"""Types that Spark has and that are none here, with what to write in their place."""

_FORM = "columns as DDL text, for example 'carrier string, flight int'"


def parse_ddl(text: str, setting: str = "schema") -> pa.Schema:
    """Return the columns of a DDL text, in its order; a column is nullable unless it says NOT NULL.

    Types are those of Spark 4: boolean, byte (tinyint), short (smallint), int (integer), long (bigint), float (real), double, decimal(p,s),
    string, binary, date, timestamp (an instant, UTC), timestamp_ntz, void, array<>, map<,>, struct<>. Case does not matter. A name with other
    signs than letters, digits and underscores stands in backquotes. A comment becomes the metadata ``comment`` of its field, as in Spark.

    :param setting: how the parameter is called that the text was given for.
    :raises SettingError: the text is none; it says where, what stands there and what was expected.
    """
    return _schema(_columns(text, setting))


def column_names(text: str, setting: str = "schema") -> list[str]:
    """Return the names of the columns of a DDL text, without Arrow: what is checked when a DAG file is parsed.

    :raises SettingError: as ``parse_ddl``.
    """
    return [column.name for column in _columns(text, setting)]


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def ddl_of_bodies(columns: pa.Schema) -> str:
    """Return columns as DDL, with the types that their values have in the JSON of a body: text where JSON has no other (times, intervals, UUIDs)."""
    return ",".join(f"{quoted(field.name)} {_in_a_body(field.type)}" for field in columns)


def _in_a_body(kind: Any) -> str:
    of: Any = pa.types
    if of.is_dictionary(kind) or of.is_run_end_encoded(kind):
        return _in_a_body(kind.value_type)
    if of.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(field.name)}: {_in_a_body(field.type)}' for field in kind)}>"
    if of.is_map(kind):
        return f"map<{_in_a_body(kind.key_type)},{_in_a_body(kind.item_type)}>"
    if of.is_nested(kind):
        return f"array<{_in_a_body(kind.value_type)}>"
    return _plain_in_a_body(kind)


def _plain_in_a_body(kind: Any) -> str:
    of: Any = pa.types
    names = {_simple(name): name for name in set(_NAMES.values())}
    if of.is_unsigned_integer(kind):
        return {8: "short", 16: "int", 32: "long", 64: "decimal(20,0)"}[kind.bit_width]
    if of.is_decimal(kind):
        return _decimal_in_a_body(kind.precision, kind.scale)
    if of.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if of.is_fixed_size_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind):
        return "binary"
    return {pa.date64(): "date", pa.float16(): "float"}.get(kind, names.get(kind, "string"))


def _decimal_in_a_body(precision: int, scale: int) -> str:
    """Return a decimal of Spark for one that may have more digits, as Spark makes one of a result: whole digits first, and 6 behind the point."""
    before, behind = max(precision - scale, 0), max(scale, 0)
    if before + behind > MAX_PRECISION:
        behind = max(MAX_PRECISION - before, min(behind, _BEHIND))
    return f"decimal({min(max(before + behind, 1), MAX_PRECISION)},{behind})"


def united(newer: str, older: str, differ: list[str] | None = None) -> str:
    """Return the columns of a DDL text, and behind them those that only an older one has.

    A column of both, in whatever case, has the older one's name, and a type that holds the values of both; where there is none, the newer one's.

    :param differ: gets the names of columns and fields for which there is none.
    """
    columns = _united(_parsed(newer, "schema"), _parsed(older, "schema"), [] if differ is None else differ)
    return ",".join(f"{quoted(column.name)} {_text(column.kind)}" for column in columns)


def retyped(newer: str, older: str) -> str:
    """Return the older columns whose values in bodies are others when they are read by the newer columns; empty: there are none.

    :param newer: what ``united`` has made of both.
    """
    now = {column.name.lower(): column.kind for column in _parsed(newer, "schema")}
    columns = [column for column in _parsed(older, "schema") if not _reads_alike(now[column.name.lower()], column.kind)]
    return ",".join(f"{quoted(column.name)} {_text(column.kind)}" for column in columns)


class _Column(NamedTuple):
    """A column, or a field of a struct.

    :ivar kind: our name of its type, and its parts: ``("int",)``, ``("decimal", 10, 2)``, ``("array", ("int",))``, ``("struct", columns)``.
    """

    name: str
    kind: tuple[Any, ...]
    nullable: bool
    comment: str | None


def _columns(text: str, setting: str) -> tuple[_Column, ...]:
    if not isinstance(text, str):
        raise SettingError(setting, text, _FORM)
    return _parsed(text, setting)


@lru_cache(64)
def _parsed(text: str, setting: str) -> tuple[_Column, ...]:
    return _Parser(text, setting).columns()


class _Parser:
    """A text, read from left to right.

    :ivar _at: the token that is read next.
    """

    def __init__(self, text: str, setting: str) -> None:
        self._text, self._setting, self._at = text, setting, 0
        self._tokens = [(str(found.lastgroup), found[found.lastgroup or 0], found.start(found.lastgroup or 0)) for found in _TOKEN.finditer(text)]

    def columns(self) -> tuple[_Column, ...]:
        found = self._fields(colon=False)
        if self._at < len(self._tokens):
            raise self._wrong("a comma before the next column, or the end")
        return found

    def _fields(self, *, colon: bool) -> tuple[_Column, ...]:
        """Return fields up to what is no comma.

        :param colon: whether a colon is the usual sign between name and type; it may always stand there.
        """
        found: dict[str, _Column] = {}
        while True:
            start = self._at
            name = self._name()
            if name.lower() in found:
                self._at = start
                raise self._wrong("another name: there is a column of this one before it, and Spark takes names that differ in case alone for one")
            self._skip(":")
            kind = self._type(f"the type of {name!r}" + (", after a colon" if colon else ""))
            nullable = kind == ("void",) or not self._words("not", "null")
            found[name.lower()] = _Column(name, kind, nullable, self._comment() if self._words("comment") else None)
            if not self._skip(","):
                return tuple(found.values())

    def _name(self) -> str:
        kind, token, _ = self._peek()
        if kind == "quoted":
            self._at += 1
            return token[1:-1].replace("``", "`")
        if kind != "word":
            raise self._wrong("the name of a column; one with other signs than letters, digits and underscores stands in backquotes")
        self._at += 1
        return token

    def _type(self, what: str) -> tuple[Any, ...]:
        kind, token, _ = self._peek()
        if kind != "word":
            raise self._wrong(what)
        name = token.lower()
        if name in _NAMES:
            self._at += 1
            return (_NAMES[name],)
        if name in _DECIMALS:
            self._at += 1
            return self._decimal()
        if name in {"array", "map", "struct"}:
            self._at += 1
            return self._nested(name)
        if name in _ELSEWHERE:
            raise self._wrong(f"a type that Arrow and Delta have; {_ELSEWHERE[name]}")
        near = nearest(name, (*_NAMES, *_DECIMALS))
        hint = f"; is {near!r} meant?" if near and folded(near)[:1] == folded(name)[:1] else ""
        raise self._wrong(f"{what}, one of {', '.join(_TYPES)}{hint}")

    def _decimal(self) -> tuple[str, int, int]:
        precision, scale = _DEFAULT_PRECISION, 0
        if self._skip("("):
            precision = self._number(f"the number of digits, 1 to {MAX_PRECISION}", 1, MAX_PRECISION)
            if self._skip(","):
                scale = self._number(f"the digits behind the point, 0 to {precision}", 0, precision)
            self._expect(")")
        return ("decimal", precision, scale)

    def _nested(self, name: str) -> tuple[Any, ...]:
        self._expect("<")
        made: tuple[Any, ...]
        if name == "array":
            made = ("array", self._type("the type of the elements"))
        elif name == "map":
            if self._peek()[1].lower() == "void":
                raise self._wrong("the type of the keys, which are not null")
            key = self._type("the type of the keys")
            self._expect(",")
            made = ("map", key, self._type("the type of the values"))
        else:
            made = ("struct", () if self._peek()[1] == ">" else self._fields(colon=True))
        self._expect(">")
        return made

    def _number(self, what: str, least: int, most: int) -> int:
        _, token, _ = self._peek()
        if not (token.isascii() and token.isdigit() and least <= int(token) <= most):
            raise self._wrong(what)
        self._at += 1
        return int(token)

    def _comment(self) -> str:
        kind, token, _ = self._peek()
        if kind != "text":
            raise self._wrong("the text of the comment, in quotes")
        self._at += 1
        return re.sub(r"\\(.)", r"\1", token[1:-1])

    def _words(self, *words: str) -> bool:
        """Skip these words where all of them follow."""
        following = [(kind, token.lower()) for kind, token, _ in self._tokens[self._at : self._at + len(words)]]
        if following != [("word", word) for word in words]:
            return False
        self._at += len(words)
        return True

    def _skip(self, sign: str) -> bool:
        found = self._peek()[:2] == ("sign", sign)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._wrong(f"{sign!r}")

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "", len(self._text))

    def _wrong(self, expected: str) -> SettingError:
        kind, token, start = self._peek()
        there = "the text ends" if kind == "end" else f"{token!r} stands"
        return SettingError(self._setting, self._text, f"{_FORM}; at character {start + 1} {there}, expected is {expected}")


@lru_cache(64)
def _schema(columns: tuple[_Column, ...]) -> pa.Schema:
    return pa.schema([_field(column) for column in columns])


def _field(column: _Column) -> pa.Field[pa.DataType]:
    return pa.field(column.name, _arrow(column.kind), column.nullable, {"comment": column.comment} if column.comment is not None else None)


def _arrow(kind: tuple[Any, ...]) -> pa.DataType:
    match kind:
        case ("decimal", precision, scale):
            return pa.decimal128(precision, scale)
        case ("array", element):
            return pa.list_(_arrow(element))
        case ("map", key, value):
            return pa.map_(_arrow(key), _arrow(value))
        case ("struct", fields):
            return pa.struct([_field(field) for field in fields])
    return _simple(kind[0])


def _simple(name: str) -> pa.DataType:
    kinds: dict[str, pa.DataType] = {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "void": pa.null(),
    }
    return kinds[name]


def ddl_type(kind: pa.DataType) -> str:
    """Return how Spark writes a type that ``parse_ddl`` returns; of another one how Arrow does."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {ddl_type(field.type)}' for field in kind)}>"
    names = {_simple(name): name for name in set(_NAMES.values())}
    return names.get(kind, str(kind))


def _united(newer: tuple[_Column, ...], older: tuple[_Column, ...], differ: list[str]) -> tuple[_Column, ...]:
    before, both = {column.name.lower(): column for column in older}, list[_Column]()
    for column in newer:
        old = before.pop(column.name.lower(), column)
        kind = _holding(column.kind, old.kind, differ)
        if kind is None:
            differ.append(column.name)
        both.append(old._replace(kind=kind or column.kind))
    return (*both, *before.values())


_WHOLE = {"byte": 3, "short": 5, "int": 10, "long": 19}
"""Types of whole numbers, from the smallest on, with the digits that they may have."""
_EXACT = {"float": ("byte", "short"), "double": ("byte", "short", "int", "float")}
"""Types whose values a type of floating point has without a loss."""


def _holding(newer: tuple[Any, ...], older: tuple[Any, ...], differ: list[str]) -> tuple[Any, ...] | None:
    """Return a type that holds the values of both; None: there is none."""
    match newer, older:
        case ("struct", fields), ("struct", others):
            return ("struct", _united(fields, others, differ))
        case ("array" | "map", *parts), ("array" | "map", *others) if newer[0] == older[0]:
            held = [_holding(one, other, differ) for one, other in zip(parts, others, strict=True)]
            return None if None in held else (newer[0], *held)
    one, two = newer[0], older[0]
    if {one, two} <= {*_WHOLE}:
        return max(newer, older, key=lambda kind: _WHOLE[kind[0]])
    if {one, two} <= {"decimal", *_WHOLE}:
        whole, scale = (max(sizes) for sizes in zip(_digits(newer), _digits(older), strict=True))
        return ("decimal", whole + scale, scale) if whole + scale <= MAX_PRECISION else None
    wide = {two: older, one: newer}
    return newer if newer == older else next((kind for name, kind in wide.items() if {one, two} - {name} <= {"void", *_EXACT.get(name, ())}), None)


def _reads_alike(newer: tuple[Any, ...], older: tuple[Any, ...]) -> bool:
    """Say whether a value of a body means the same by both types: a float has fewer digits in JSON than the double that it is."""
    match newer, older:
        case ("struct", fields), ("struct", others):
            now = {field.name.lower(): field.kind for field in fields}
            return all(_reads_alike(now[field.name.lower()], field.kind) for field in others)
        case ("array" | "map", *parts), ("array" | "map", *others) if newer[0] == older[0]:
            return all(map(_reads_alike, parts, others))
    return older == newer or older[0] == "void" or (older[0] != "float" and _holding(newer, older, []) == newer)


def _digits(kind: tuple[Any, ...]) -> tuple[int, int]:
    """Return how many digits a number has before the point, and behind it."""
    return (_WHOLE[kind[0]], 0) if kind[0] in _WHOLE else (kind[1] - kind[2], kind[2])


def _text(kind: tuple[Any, ...]) -> str:
    """Return how Spark writes a type."""
    match kind:
        case ("decimal", precision, scale):
            return f"decimal({precision},{scale})"
        case ("array", element):
            return f"array<{_text(element)}>"
        case ("map", key, value):
            return f"map<{_text(key)},{_text(value)}>"
        case ("struct", fields):
            return f"struct<{','.join(f'{quoted(field.name)}: {_text(field.kind)}' for field in fields)}>"
    return str(kind[0])
