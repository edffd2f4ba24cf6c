"""Handlers are checked where they are named, and travel by name or by value."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from airflow_poison.delivery.handler_wrappers import Session, SessionNotConsumed, items_of, session_handler, sessiongram
from airflow_poison.delivery.handlers import HandlerRef, check_given, check_returned, load_handler, resolve_handler
from airflow_poison.values.errors import HandlerNotFoundError, HandlerNotRunError, InputError
from airflow_poison.values.message import Message
from tests.sessions import sample_handlers

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = "tests.sessions.sample_handlers"
COROUTINES = ["coroutine", "runs_later", "later_in_part", "object_in_part", "method_later"]
GENERATORS = ["yields", "yields_later", "yields_as_object"]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("arrivals", ["'arrivals'", "module:function"]),
        ("shop.nowhere:land", ["'shop.nowhere:land'", "ModuleNotFoundError", "sys.path", "PYTHONPATH"]),
        (f"{SAMPLES}:land", ["has no 'land'", "sample_handlers.py"]),
        (f"{SAMPLES}:not_callable", ["is int, not something callable"]),
        ("shop.arrivals.land", ["module:function"]),
        ("shop/arrivals.py:land", ["module:function"]),
        ("shop.arrivals: land", ["module:function"]),
        (":land", ["module:function"]),
        (f"{SAMPLES}:two_arguments", ["two_arguments(message", "message alone", "def handler(message)"]),
        (f"{SAMPLES}:Yields", ["is a class", "an instance"]),
        *((f"{SAMPLES}:{name}", ["coroutine function", "asyncio.run"]) for name in COROUTINES),
        *((f"{SAMPLES}:{name}", ["generator function", "'yield'"]) for name in GENERATORS),
    ],
)
def test_a_handler_that_cannot_be_used_is_named_with_the_next_step(handler: str, words: list[str]) -> None:
    with pytest.raises(HandlerNotFoundError) as raised:
        resolve_handler(handler)

    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("name", ["not_callable", "two_arguments", "Yields", *COROUTINES, *GENERATORS])
def test_what_can_be_no_handler_is_told_without_an_import_when_the_object_is_given(name: str) -> None:
    with pytest.raises(HandlerNotFoundError):
        check_given(getattr(sample_handlers, name))


@pytest.mark.parametrize("given", ["shop.nowhere:land", "{{ var.value.handler }}", "{% if a %}shop:land{% endif %}", sample_handlers.nothing])
def test_a_name_is_imported_later_and_a_template_is_checked_when_it_is_rendered(given: Any) -> None:
    check_given(given)


def test_a_decorator_decides_for_the_function_that_it_wraps() -> None:
    """What is called is the outer function: it may run a generator or a coroutine, and give more arguments."""

    @functools.wraps(sample_handlers.yields)
    def run(message: Message) -> None:
        list(sample_handlers.yields(message))

    @functools.wraps(sample_handlers.two_arguments)
    def give(message: Message) -> None:
        sample_handlers.two_arguments(message, "more")

    check_given(run)
    check_given(give)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (sample_handlers.yields, r"a generator \(yields\).*without 'yield'"),
        (sample_handlers.yields_later, r"an async generator \(yields_later\).*'async for'"),
        (sample_handlers.touch, r"an awaitable \(touch\).*asyncio\.run"),
        (sample_handlers.Awaitable, r"an awaitable \(Awaitable\)"),
    ],
)
def test_what_has_not_run_is_refused_when_it_is_returned_and_nobody_warns_of_it(returned: Any, says: str) -> None:
    with warnings.catch_warnings(action="error"):
        with pytest.raises(HandlerNotRunError, match=says):
            check_returned(returned(Message(b"x")))
        gc.collect()


@pytest.mark.parametrize("returned", [None, 7, "text", [1], {"a": 1}, iter([1]), MagicMock(), Message(b"x")], ids=repr)
def test_every_other_value_may_be_returned(returned: object) -> None:
    check_returned(returned)


def test_a_generator_that_was_begun_is_closed_and_its_own_errors_do_not_hide_what_is_wrong() -> None:
    def begun() -> Any:
        try:
            yield 1
        finally:
            raise ValueError("in the end")

    generator = begun()
    next(generator)
    with pytest.raises(HandlerNotRunError):
        check_returned(generator)


def test_a_module_that_fails_to_import_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_shop.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(HandlerNotFoundError, match="ZeroDivisionError"):
        resolve_handler("broken_shop:land")


def test_an_importable_function_travels_by_name() -> None:
    ref = resolve_handler(sample_handlers.nothing)

    assert (ref.name, ref.by_value) == (f"{SAMPLES}:nothing", None)
    assert load_handler(ref) is sample_handlers.nothing
    assert resolve_handler(ref) is ref


@pytest.mark.parametrize("make", [lambda seen: lambda message: seen.append(message.body), lambda seen: functools.partial(list.append, seen)])
def test_closures_and_partials_travel_by_value(make: Any) -> None:
    ref = resolve_handler(make([]))

    assert ref.by_value is not None
    assert callable(load_handler(ref))


def test_a_function_of_a_dag_file_travels_by_value_with_what_it_calls(tmp_path: Path) -> None:
    module = types.ModuleType("unusual_prefix_0123abcd_arrivals")
    sys.modules[module.__name__] = module
    try:
        exec("def clean(body): return body.strip()\ndef land(message):\n    assert clean(message) == b'x'\n    print('landed')", module.__dict__)
        ref = resolve_handler(module.land)
    finally:
        del sys.modules[module.__name__]
    assert ref.by_value is not None
    carried = tmp_path / "handler"
    carried.write_bytes(ref.by_value)

    told = subprocess.run(
        [sys.executable, "-c", f"import pickle; pickle.loads(open({str(carried)!r}, 'rb').read())(b' x ')"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout == "landed\n"


def test_what_cannot_be_carried_is_said(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(HandlerNotFoundError, match="must be picklable"):
        resolve_handler(lambda message: file.write(message.text))


def test_a_reference_that_cannot_be_unpacked_says_so() -> None:
    with pytest.raises(HandlerNotFoundError, match="came by value"):
        load_handler(HandlerRef("shop:land", b"rubbish"))


# Sessiongrams ---------------------------------------------------------------------------------------------------------


def test_wcf_39_items_go_there_and_back() -> None:
    assert items_of(sessiongram([b"a", b"", b"ccc"])) == [b"a", b"", b"ccc"]


def test_wcf_39_a_session_shares_the_counts_of_its_message() -> None:
    session = Session(Message(sessiongram([b"a", b"b"]), lookup_id=7, abort_count=2, move_count=4))

    assert [(item.body, item.lookup_id, item.abort_count, item.move_count) for item in session] == [(b"a", 7, 2, 4), (b"b", 7, 2, 4)]


def test_wcf_39_items_that_are_not_consumed_roll_the_session_back() -> None:
    with pytest.raises(SessionNotConsumed, match="2 of 3 items"):
        session_handler(sample_handlers.take_one)(Message(sessiongram([b"a", b"b", b"c"])))
    with pytest.raises(HandlerNotRunError):
        session_handler(lambda session: (item for item in session))(Message(sessiongram([b"a"])))
    session_handler(sample_handlers.take_all)(Message(sessiongram([b"a", b"b", b"c"])))


@pytest.mark.parametrize("body", [b"", b"no gram", sessiongram([b"abc"])[:-1], sessiongram([b"abc"]) + b"\x00"])
def test_a_body_that_is_no_sessiongram_is_a_rollback_like_any_other(body: bytes) -> None:
    with pytest.raises(ValueError, match="sessiongram"):
        items_of(body)


def test_a_session_has_at_least_one_item() -> None:
    with pytest.raises(InputError):
        sessiongram([])
