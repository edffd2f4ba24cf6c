"""Records that are hard to keep: digits beyond doubles, names that stand twice, bytes that are no text, signs that turn the text around.

Each says what its handler does, as all messages of the campaign; and comes with what its message must have.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_poison.values.schema import MAX_BODY_BYTES
from tests.faults.exact import BYTES, JSON, digest_as

if TYPE_CHECKING:
    from random import Random

_BEHIND = b"|"
"""Stands between what a handler does and what is hard to keep."""
_DEED = re.compile(rb'"deed"\s*:\s*"([a-z0-9 ]*)"')
_BYTES = (
    b"caf\xe9",
    b"\xff\xfe\x00\xd8",
    b"\xef\xbb\xbf",
    "\u202e\u2028\u0085\ufeff".encode(),
    b"\x00\x01\x7f",
    b"\"\\,;\t'",
    b"0.1000000000000000055511151231257827",
    b"NaN",
    b"\xed\xa0\x80",
)
_FIELDS = (
    '"n": 12345678901234567890123.4500',
    '"n": 9007199254740993',
    '"e": 1e400',
    '"e": -1E-400',
    '"z": -0.0',
    '"at": "2013-01-01T05:00:00.1234567Z"',
    '"text": "\\ud800"',
    '"text": "\\u0000\\/\\u00e9\u00e9"',
    '"text": "\u202e\u2028"',
    '"gone" : 1.10',
    '"more": {"a": [1.0, {"b": 1e2}], "mended":  "no"}',
    '"empty": ""',
)
_TWICE = '"twice": 1.0, "twice": 2'
_WORDS = ("plain", "NA", "null", "nan", "1.10", "007", " x ", "a,b", 'say "so"', "two\nlines", "\u202e", "caf\u00e9", "1e400")
_LARGE = 200
"""One of so many senders sends a body as large as one may be."""


def deed_of(body: bytes) -> list[bytes]:
    """Return the words that say what a handler does."""
    found = _DEED.search(body) if body.lstrip(b"\xef\xbb\xbf").startswith(b"{") else None
    return (found[1] if found is not None else body[:64].partition(_BEHIND)[0]).split()


def hard_body(chance: Random, deed: bytes) -> bytes:
    """Return a body: plain, of odd bytes, or of JSON."""
    what = chance.random()
    if what < 0.5:
        return deed
    if what < 0.53:
        return b""
    if what < 0.75:
        return deed + _BEHIND + chance.choice(_BYTES)
    if what < 0.8:
        return b"\xef\xbb\xbf" + hard_json(chance, deed)
    return hard_json(chance, deed)


def largest(chance: Random) -> list[bytes]:
    """Return, now and then, a body as large as one may be."""
    return [b"ok|" + b"x" * (MAX_BODY_BYTES - 3)] if not chance.randrange(_LARGE) else []


def hard_properties(chance: Random) -> list[tuple[str, str]]:
    return chance.sample([("kind", "\u202e\u0000"), ("caf\u00e9", "1.10"), ("empty", ""), ("mended", "no")], chance.randint(0, 2))


def hard_json(chance: Random, deed: bytes, message_id: str | None = None, *, once: bool = False) -> bytes:
    """Return a JSON object on one line.

    :param message_id: becomes its field ``id``.
    :param once: no name stands twice.
    """
    fields = {each.partition(":")[0].strip(): each for each in chance.sample(_FIELDS, chance.randint(0, 4))}.values()
    twice = [_TWICE] if not once and chance.random() < 0.2 else []
    known = [f'"id":{json.dumps(message_id)}'] if message_id is not None else []
    comma = chance.choice([",", ", ", " , "])
    return ("{" + comma.join([*known, f'"deed": "{deed.decode()}"', *fields, *twice]) + "}").encode()


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with columns.

    :param table: for formats with types.
    :param wanted: the digest of the JSON that each becomes, by id.
    """

    table: pa.Table
    wanted: dict[str, list[str]]


_FIELDS_OF_ROWS: list[pa.Field[Any]] = [
    pa.field("id", pa.string()),
    pa.field("deed", pa.string()),
    pa.field("amount", pa.decimal128(38, 4)),
    pa.field("nest", pa.struct([pa.field("x", pa.decimal128(30, 2)), pa.field("many", pa.list_(pa.struct([pa.field("d", pa.decimal128(30, 2))])))])),
    pa.field("by_name", pa.map_(pa.string(), pa.decimal128(30, 2))),
    pa.field("raw", pa.binary()),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("n", pa.int64()),
    pa.field("f", pa.float64()),
    pa.field("text", pa.string()),
]
_SCHEMA = pa.schema(_FIELDS_OF_ROWS)
COLUMNS = (*_SCHEMA.names,)
_AT = datetime(2013, 1, 1, 5, tzinfo=UTC)


def typed_rows(chance: Random, deeds: list[bytes], ids: list[str], **further: str) -> Rows:
    """Return rows with numbers that no double holds, nested ones too.

    :param further: what each row has in further columns that its reader adds.
    """
    rows, wanted = [], {}
    for deed, row_id in zip(deeds, ids, strict=True):
        row, text = _typed_row(chance, deed.decode(), row_id, further)
        rows.append(row)
        wanted[row_id] = [JSON, digest_as(JSON, text.encode())]
    return Rows(pa.Table.from_pylist(rows, schema=_SCHEMA), wanted)


def _typed_row(chance: Random, deed: str, row_id: str, further: dict[str, str]) -> tuple[dict[str, Any], str]:
    amount = chance.choice(["1234567890123456789012345678901234.5600", "0.1000", "-19.9900"])
    nested = chance.choice(["12345678901234567.89", "0.10", "-1.00"])
    micros = chance.choice([0, 123_000, 123_456])
    raw = chance.choice([b"", b"\xff\x00", b"caf\xe9"])
    whole = chance.choice([2**63 - 1, -(2**63), 9007199254740993])
    real, real_text = chance.choice([(0.1, "0.1"), (float("nan"), '"NaN"'), (float("-inf"), '"-Infinity"'), (2.5, "2.5")])
    text = chance.choice(["\u202e", "a\u0000b", '"\\', "", "caf\u00e9"])
    row = {
        "id": row_id,
        "deed": deed,
        "amount": Decimal(amount),
        "nest": {"x": Decimal(nested), "many": [{"d": Decimal(nested)}, None]},
        "by_name": [("k\u00e9", Decimal(nested))],
        "raw": raw,
        "at": _AT + timedelta(microseconds=micros),
        "n": whole,
        "f": real,
        "text": text,
    }
    instant = f"2013-01-01T05:00:00.{micros:06}" if micros % 1_000 else f"2013-01-01T05:00:00.{micros // 1_000:03}"
    cells = {
        "id": json.dumps(row_id),
        "deed": json.dumps(deed),
        "amount": amount,
        "nest": f'{{"x": {nested}, "many": [{{"d": {nested}}}, null]}}',
        "by_name": f'{{"k\u00e9": {nested}}}',
        "raw": json.dumps(base64.b64encode(raw).decode()),
        "at": json.dumps(f"{instant}Z"),
        "n": str(whole),
        "f": real_text,
        "text": json.dumps(text),
        **{name: json.dumps(value) for name, value in further.items()},
    }
    return row, "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in cells.items()) + "}"


def csv_rows(chance: Random, deeds: list[bytes], ids: list[str]) -> tuple[list[bytes], dict[str, list[str]]]:
    """Return lines of CSV with the columns id, deed and word, and what each becomes, by id."""
    lines, wanted = [], {}
    for deed, row_id in zip(deeds, ids, strict=True):
        word = chance.choice([*_WORDS, "", None])
        cell = "" if word is None else word if word and not set(word) & set(',"\n') else '"' + word.replace('"', '""') + '"'
        lines.append(f"{row_id},{deed.decode()},{cell}".encode())
        body = json.dumps({"id": row_id, "deed": deed.decode(), "word": word}).encode()
        wanted[row_id] = [JSON, digest_as(JSON, body)]
    return lines, wanted


def exactly(body: bytes) -> list[str]:
    """Return what a message must have whose body is what was written."""
    return [BYTES, digest_as(BYTES, body)]


def table_rows(chance: Random, deeds: list[bytes], ids: list[str]) -> tuple[list[tuple[object, ...]], dict[str, list[str]]]:
    """Return rows of a database's table with the columns id, deed, n, raw and word, and what each becomes, by id."""
    rows, wanted = list[tuple[object, ...]](), {}
    for deed, row_id in zip(deeds, ids, strict=True):
        whole, raw, word = chance.choice([2**63 - 1, -(2**63), 9007199254740993]), chance.choice([b"", b"\xff\x00"]), chance.choice(_WORDS)
        rows.append((row_id, deed.decode(), whole, raw, word))
        body = {"id": row_id, "deed": deed.decode(), "n": whole, "raw": base64.b64encode(raw).decode(), "word": word}
        wanted[row_id] = [JSON, digest_as(JSON, json.dumps(body).encode())]
    return rows, wanted
