"""XML that only says what it says: without a DTD, so that no entity is read from elsewhere and none grows when it is expanded."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.parsers import expat

if TYPE_CHECKING:
    from typing import NoReturn
    from xml.etree.ElementTree import TreeBuilder


class NotWellFormedError(ValueError):
    """Bytes are no well-formed XML, or XML with a DTD."""


def read(document: bytes, builder: TreeBuilder | None = None) -> None:
    """Read a document in UTF-8, UTF-16 (with or without a mark, as SQL Server keeps nvarchar) or the encoding that it declares.

    :param builder: is told of elements and text; names are ``namespace}local``. None: the document is only checked.
    Raises NotWellFormedError.
    """
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = _refuse
    if builder is not None:
        parser.buffer_text = True
        parser.StartElementHandler = builder.start
        parser.EndElementHandler = builder.end
        parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(document, True)  # noqa: FBT003  (expat takes it by position only)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: a DTD, or an encoding that nobody knows
        raise NotWellFormedError(str(error)) from error


def _refuse(*_declaration: object) -> NoReturn:
    raise NotWellFormedError("it has a DTD")
