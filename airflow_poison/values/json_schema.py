"""JSON Schema on exact numbers: jsonschema's own classes compute with floats, in which 19.99 is no multiple of 0.01."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError

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
