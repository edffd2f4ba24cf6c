"""Texts for people: bodies of messages, the known word that was probably meant, numbers of things, and records as plain values."""

from __future__ import annotations

import codecs
import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
_MARK_8 = codecs.BOM_UTF8
_DECLARATION = re.compile(rb"""<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]{0,40})["']""")
_CHARSETS = re.compile(r"iso8859|cp\d|koi8|mac|ascii|shift_jis|euc_|gb|big5")
"""What Python calls the character sets that XML is written in, with ASCII at their beginning. Its other codecs do more than decode."""


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body, or its beginning, as text.

    :param encoding: what it was read as, in the words of its declaration; empty for plain UTF-8.
    """

    text: str
    encoding: str = ""


def body_text(body: bytes, most: int | None = None) -> BodyText | None:
    """Return a body as text; None for one that is none. XML says itself how it is encoded; Service Broker sends it in UTF-16.

    :param most: only so many bytes of it; the whole body has to be text.
    """
    codec = xml_codec(body)
    if codec is not None and (text := _decoded(body, codec, most)) is not None and "\0" not in text:
        return BodyText(text, _name(body, codec))
    text = _decoded(body, "utf-8", most)
    return None if text is None else BodyText(text)


def _decoded(body: bytes, codec: str, most: int | None) -> str | None:
    try:
        text = body.decode(codec)
    except UnicodeDecodeError:
        return None
    return text if most is None else body[:most].decode(codec, "ignore")


def xml_codec(body: bytes) -> str | None:
    """Return how XML is decoded that is not in plain UTF-8; None for that, and for what is no XML."""
    if body.startswith(_MARK_8):
        return "utf-8-sig"
    if (codec := _MARKS.get(body[:2])) is not None:
        return codec if body[:200].decode(codec, "ignore").lstrip().startswith("<") else None
    declared = _declared(body)
    if declared is None:
        return None
    try:
        name = codecs.lookup(declared).name
    except LookupError:
        return None
    return name if _CHARSETS.match(name) else None


def _declared(body: bytes) -> str | None:
    found = _DECLARATION.match(body)
    return None if found is None else found[1].decode()


def _name(body: bytes, codec: str) -> str:
    if codec.startswith("utf-"):
        return "UTF-8" if codec == "utf-8-sig" else "UTF-16"
    return _declared(body) or ""


def visible(text: str, keep: str = "") -> str:
    r"""Return a text in which each sign can be seen: escapes (``\n``, ``\x1b``, ``\u202e``) for line ends, control and direction signs. Blanks stay.

    Texts of messages, errors and names are shown so, since they could write lines of their own, or steer a terminal.

    :param keep: signs that stay, for example line ends.
    """
    return text if text.isprintable() else "".join(sign if sign.isprintable() or sign in keep else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    if unicodedata.category(sign) == "Zs":
        return sign
    return "\\x0d" if sign == "\r" else sign.encode("unicode_escape").decode()


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text. Names of files and arguments that are none have a lone surrogate for each byte that is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def folded(word: str) -> str:
    """Return a word without what people leave out: case, and the signs between its parts."""
    return "".join(filter(str.isalnum, word)).lower()


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is nearest to a word; empty when nothing is known."""
    words = {folded(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(folded(word), words, n=1, cutoff=0)
    return words[close[0]] if close else ""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its thing: ``1 message``, ``2,000 messages``, ``1 delivery``.

    :param many: the plural; empty: with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


class Plain:
    """A dataclass that JSON can hold as plain values: its results are shown to people and to other tasks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by the names of the fields: instants as ISO 8601, tuples as lists, records as their own plain values."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]  # its heirs are dataclasses


def plain(value: object) -> Any:
    """Return a value as JSON can hold it."""
    match value:
        case Plain():
            return value.to_dict()
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case Mapping():
            return {plain(key): plain(each) for key, each in value.items()}
        case tuple() | list():
            return [plain(each) for each in value]
        case _:
            return value


_GLOB = re.compile(r"([\\\[\]{}*?])")


def literal_path(path: str) -> str:
    """Return a path as Spark's readers take it by itself: they take signs of patterns for patterns."""
    return local_uri(_GLOB.sub(r"\\\1", path))


def on_spark(uri: str) -> str:
    """Return how Hadoop's file systems name a URI of an object store."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


def place_of(address: str) -> str:
    """Return a path or a URI as one text for each place, to compare them."""
    plain = re.sub("^(s3)a(?=://)", r"\1", address).removeprefix("file://")
    return plain.rstrip("/") if "://" in plain else os.path.realpath(plain)


def local_uri(path: str) -> str:
    """Return a path as one of this machine, and a URI as it is: Spark's own file system may be HDFS or a bucket."""
    return path if "://" in path else f"file://{Path(path).absolute()}"


def first_line(error: object, most: int = 500) -> str:
    """Return what an error says first, without a full stop: not the plan and the stack traces behind it."""
    lines = (line.strip() for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)[:most].rstrip(".")


_LOST_TASK = re.compile(r"Lost task .*?\): (.*)")
_CAUSE = re.compile(r"^Caused by: (\S+:\s+(?!at )\S.*|.*)$", re.MULTILINE)
"""A cause may say what has happened in its second line."""


def of_java(text: str) -> str:
    """Return the line of an error's text that says what has happened; in one of Spark behind what Py4J, the job and the thread say first."""
    lines = [line.removeprefix(": ") for line in text.splitlines() if line.strip() and not line.startswith("An error occurred while calling")]
    task, causes = _LOST_TASK.search(text), _CAUSE.findall(text)
    words: str = task[1] if task else next(iter(lines), "")
    if not words.rstrip().endswith(":"):
        return words
    behind = next((line.strip() for line in lines[1:] if not task and not line.lstrip().startswith("at ")), "")
    return " ".join(causes[-1].split()) if causes else f"{words.rstrip()} {behind}".rstrip()  # causes: of "Exception thrown in awaitResult:"
