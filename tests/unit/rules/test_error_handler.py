"""Error handlers: what they answer, and which classes can be installed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_poison.values.errors import ErrorHandlerError, PoisonMessageError
from airflow_poison.values.failures import ErrorHandler, PoisonErrorHandler, install_error_handler


class OtherPoisonError(PoisonMessageError):
    pass


def test_wcf_26_e11_it_answers_true_for_exactly_the_poison_exception_and_records_the_message() -> None:
    handler = PoisonErrorHandler()

    answers = [handler.handle_error(error) for error in (PoisonMessageError(7, "orders"), ValueError(), OtherPoisonError(8), PoisonMessageError(9))]

    assert answers == [True, False, False, True]
    assert handler.lookup_ids == [7, 9]


def test_wcf_26_providing_a_fault_does_nothing() -> None:
    handler = PoisonErrorHandler()

    handler.provide_fault(PoisonMessageError(7))

    assert handler.lookup_ids == []


class WithDefaults(PoisonErrorHandler):
    def __init__(self, path: str = "log") -> None:
        super().__init__()
        self.path = path


class NeedsParameters(PoisonErrorHandler):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


class NeedsKeyword(PoisonErrorHandler):
    def __init__(self, *, path: str) -> None:
        super().__init__()
        self.path = path


class Fails(PoisonErrorHandler):
    def __init__(self) -> None:
        message = "the constructor's own fault"
        raise TypeError(message)


class Unfinished(ErrorHandler):
    pass


class Alike:
    def handle_error(self, error: BaseException) -> bool:
        return True


@pytest.mark.parametrize("handler", [PoisonErrorHandler, WithDefaults])
def test_wcf_27_a_class_with_the_interface_and_no_needed_parameters_is_installed(handler: type[ErrorHandler]) -> None:
    assert type(install_error_handler(handler)) is handler


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (NeedsParameters, "without parameters"),
        (NeedsKeyword, "without parameters"),
        (Alike, "implements ErrorHandler"),
        (Unfinished, "implements ErrorHandler"),
        (PoisonErrorHandler(), "implements ErrorHandler"),
        (print, "implements ErrorHandler"),
    ],
)
def test_wcf_27_e11_any_other_is_refused_when_the_endpoint_opens(handler: Any, text: str) -> None:
    with pytest.raises(ErrorHandlerError, match=text):
        install_error_handler(handler)


def test_wcf_27_an_error_inside_the_constructor_is_its_own() -> None:
    with pytest.raises(TypeError, match="own fault") as caught:
        install_error_handler(Fails)

    assert not isinstance(caught.value, ErrorHandlerError)
