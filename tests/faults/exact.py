"""Bodies and properties to the byte, for the ledger and the checker; shares no code with the product.

A ledger has digests in the place of bodies. Where a format has rows and no bodies, their layout as JSON is free, and what counts is the text of each
name and each number.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BYTES, JSON = "bytes", "json"
"""How a body is compared: byte by byte, or as what it says as JSON."""
_BOM = b"\xef\xbb\xbf"
_OURS = ("poison.", "JMS_IBM_Exception", "JMSRedelivered", "JMSXDeliveryCount", "mq.dead_letter_header")
"""Begin the names of properties that the product keeps itself, or that messaging systems set with what has failed."""

Given = tuple[tuple[str, str], ...]
"""Properties that are the sender's, or that people have set."""


class Digits(str):
    """A number as it is written."""

    __slots__ = ()


class Pairs(list[tuple[str, object]]):
    """The names and values of an object."""

    __slots__ = ()


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:24]


def given(properties: Iterable[tuple[str, str]]) -> Given:
    """Return the properties that are not the product's own, by name."""
    return tuple(sorted((name, value) for name, value in properties if not name.startswith(_OURS)))


def digest_of_given(properties: Iterable[tuple[str, str]]) -> str:
    return digest(repr(given(properties)).encode())


def tree(body: bytes) -> object:
    """Return JSON with the text of its numbers, and every name as often as it stands there. Raises ValueError."""
    return json.loads(body.removeprefix(_BOM), object_pairs_hook=Pairs, parse_int=Digits, parse_float=Digits, parse_constant=_refuse)


def digest_of_json(body: bytes) -> str:
    """Return the digest of what a body says as JSON; of the body itself when it is none."""
    try:
        return digest(repr(_tagged(tree(body))).encode())
    except ValueError:
        return digest(body)


def digest_as(how: str, body: bytes) -> str:
    return digest(body) if how == BYTES else digest_of_json(body)


def _refuse(name: str) -> object:
    raise ValueError(name)


def _tagged(value: object) -> object:
    match value:
        case Digits():
            return "number", str(value)
        case Pairs():
            return "object", [(name, _tagged(each)) for name, each in value]
        case list():
            return "list", [_tagged(each) for each in value]
        case _:
            return value


# What an edit makes of a body -----------------------------------------------------------------------------------------


def is_edited(action: Mapping[str, Any], before: bytes, after: bytes) -> bool:
    """Whether an edit makes exactly this of a body.

    :param action: a plan's, as the ledger has it: ``patch``, ``body``, ``function`` or nothing of these.
    """
    if "patch" in action:
        return _is_patched(action["patch"], before, after)
    if "body" in action:
        return bool(after == action["body"].encode())
    if "function" in action:
        return after == before + MARK
    return after == before


MARK = b"|mended"
"""What the function that edits bodies puts behind them (``redrivers.marked``)."""


def _is_patched(patch: Mapping[str, Any], before: bytes, after: bytes) -> bool:
    """Whether a body says what it said, with the patch, and the text of all other fields is as it was."""
    try:
        was, now = tree(before), tree(after)
    except ValueError:
        return False
    if _tagged(_merged(was, patch)) != _tagged(now):
        return False
    if not isinstance(was, Pairs):
        return True
    names = {name for name, _ in was}
    ((name, value),) = patch.items()
    if name not in names:  # behind all others, or nothing is there to be removed
        untouched = before.rstrip()[:-1].rstrip()
        return after.startswith(untouched) if value is not None else after == before
    if isinstance(value, str):
        pattern = re.compile(rb'("%s"\s*:\s*)"(?:[^"\\]|\\.)*"' % name.encode())
        return pattern.sub(lambda found: found[1] + json.dumps(value).encode(), before) == after
    return after.startswith(before[: before.index(b'"' + name.encode() + b'"')].rstrip(b", \t"))


def _merged(was: object, patch: object) -> object:
    """Return a merge patch (RFC 7396) of a tree."""
    if not isinstance(patch, dict):
        return patch
    found = Pairs(was if isinstance(was, Pairs) else ())
    for name, value in patch.items():
        there = [at for at, (each, _) in enumerate(found) if each == name]
        if value is None:
            found = Pairs(pair for pair in found if pair[0] != name)
        elif there:
            for at in there:
                found[at] = name, _merged(found[at][1], value)
        else:
            found.append((name, _merged(None, value)))
    return found
