"""Bodies as people read them: XML by its own mark or declaration, all else as UTF-8."""

from __future__ import annotations

import codecs

import pytest

from airflow_poison.values.texts import BodyText, body_text

ORDER = "<order>Zahnrad für Größe Ω 😀</order>"
LATIN = '<?xml version="1.0" encoding="{}"?><order>Größe</order>'


@pytest.mark.parametrize(
    ("body", "text", "encoding"),
    [
        (ORDER.encode(), ORDER, ""),
        (ORDER.encode("utf-8-sig"), ORDER, "UTF-8"),
        (ORDER.encode("utf-16-le"), ORDER, "UTF-16"),
        (ORDER.encode("utf-16-be"), ORDER, "UTF-16"),
        (codecs.BOM_UTF16_LE + ORDER.encode("utf-16-le"), ORDER, "UTF-16"),
        (codecs.BOM_UTF16_BE + ORDER.encode("utf-16-be"), ORDER, "UTF-16"),
        (LATIN.format("ISO-8859-1").encode("latin-1"), LATIN.format("ISO-8859-1"), "ISO-8859-1"),
        (LATIN.format("windows-1252").encode("cp1252"), LATIN.format("windows-1252"), "windows-1252"),
        (LATIN.format("utf-8").encode(), LATIN.format("utf-8"), ""),
        (LATIN.format("us-ascii").encode(), LATIN.format("us-ascii"), ""),  # what it declares is not true
        (b"{}", "{}", ""),
        (b"", "", ""),
    ],
)
def test_xml_is_read_by_its_mark_or_its_declaration(body: bytes, text: str, encoding: str) -> None:
    assert body_text(body) == BodyText(text, encoding)


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\x00",
        b"\xff\xfe\x00\xd8",  # half a surrogate
        b"\xff\xfe\x01\x02\x03\x04",  # a mark, and no XML
        LATIN.format("windows-1252").encode("cp1252").replace(b"windows-1252", b"unheard-of"),
        LATIN.format("utf-16").encode("latin-1"),
        LATIN.format("punycode").encode("latin-1"),
        LATIN.format("hex").encode("latin-1"),
        LATIN.format("windows-1252").encode("latin-1") + b"\x81",
    ],
)
def test_what_is_no_text_is_none(body: bytes) -> None:
    assert body_text(body) is None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16"])
@pytest.mark.parametrize("most", range(12, 20))
def test_a_beginning_is_cut_between_characters(encoding: str, most: int) -> None:
    shown = body_text("<a>😀😀😀😀</a>".encode(encoding), most)
    assert shown is not None
    assert "<a>😀😀😀😀</a>".startswith(shown.text)
    assert len(shown.text) >= 3
