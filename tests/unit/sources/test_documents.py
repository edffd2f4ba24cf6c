"""Documents of JSON are read block by block: what comes out does not depend on the blocks, and no sign of a value is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.sources.documents import begins_document, documents, values_in

if TYPE_CHECKING:
    from collections.abc import Callable

PIECES = ["{", "}", "[", "]", ",", "\n", "  ", '"a"', ":", "1", "12.5e3", "-", "true", "nul", '"x\\u00e9"', '"', "\\", " ", "NaN"]
WHOLE = ['{"a": 1},\n', '\n{"b": 2}', '\n  {"c": [\n    {"d": 1}\n  ]},', "\n]"]


def in_blocks(text: str, size: int) -> Callable[[int], str]:
    """Return what gives so many signs at once."""
    at = iter(range(0, len(text) + size, size))
    return lambda _size: text[(place := next(at, len(text))) : place + size]


def signs(text: str) -> list[str]:
    """Return the signs of values, without those that stand between values, too."""
    return [sign for sign in text if sign not in " \n,[]"]


@given(st.lists(st.sampled_from([*PIECES, *WHOLE])).map("".join), st.sampled_from([1, 3, 7]))
def test_values_do_not_depend_on_blocks_and_none_is_left_out(text: str, size: int) -> None:
    found = [each.decode() for each in documents(text.encode())]
    assert [*values_in(in_blocks(text, size))] == found
    assert signs("".join(found)) == signs(text)


def test_no_more_is_read_than_the_next_value_needs() -> None:
    asked = list[int]()

    def read(size: int) -> str:
        asked.append(size)
        return "[\n" + '{"a": 1},\n' * 100 if len(asked) == 1 else '{"a": 1},\n' * 100

    values = values_in(read)
    assert [next(values) for _ in range(250)] == ['{"a": 1}'] * 250
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("begin", "is_one"),
    [
        ('{"a": 1}\n{"b": 2}\n', False),
        ('{"a":\n{"b": 2}\n', False),
        ('{"a":\n1}\n', True),
        ('{\n{"a": 1}\n', False),
        ('[\n{"a": 1}\n]\n', True),
        ('[{"a": 1},\n{"b": 1}]\n', True),
        ("[1, 2\n[3, 4]\n", False),
        ('[{"a": 1},{"b": 2}]\n\n', False),
        ("x\n{\n", False),
        ("\n\n", False),
    ],
)
def test_a_document_is_known_by_its_beginning(begin: str, *, is_one: bool) -> None:
    assert begins_document(begin, is_all=True) is is_one
    known = [begins_document(begin[:end], is_all=False) for end in range(len(begin) + 1)]
    assert [each for each in known if each is not None] in ([], [is_one] * sum(each is not None for each in known))
