"""Lookup ids as operators are given them: numbers, or what a template leaves of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence


def lookup_ids(given: Sequence[int] | int | str) -> list[int]:
    """Return lookup ids from a list, a number, or their text: ``"7"``, ``"[7, 8]"``, ``"7, 8"``. Raises SettingError."""
    value: object = given
    if isinstance(value, str):
        text = value.strip()
        try:
            value = json.loads(text if text.startswith("[") else f"[{text}]")
        except ValueError:
            value = given
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list | tuple) or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise SettingError("lookup_ids", given, "whole numbers: 7, [7, 8] or text of them")
    return list(numbers)


def one_lookup_id(given: int | str) -> int:
    """Return the one lookup id that is given. Raises SettingError."""
    numbers = lookup_ids(given)
    if len(numbers) != 1:
        raise SettingError("lookup_id", given, "one whole number")
    return numbers[0]
