"""The line of an error's text that says what has happened."""

from __future__ import annotations

import pytest

from airflow_poison.values.texts import of_java

CALLED = "An error occurred while calling o1.load.\n: "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain\nmore", "plain"),
        (
            f"{CALLED}a.ParseException: \n[PARSE_SYNTAX_ERROR] near 'with'.\n\n== SQL ==\n\tat a.b(C.scala:1)",
            "a.ParseException: [PARSE_SYNTAX_ERROR] near 'with'.",
        ),
        (f"{CALLED}a.SparkException: Exception thrown in awaitResult:\n\tat a.b\nCaused by: a.IOException: gone\n\tat a.c", "a.IOException: gone"),
        (
            f"{CALLED}a.SparkException: Exception thrown in awaitResult:\n\tat a.b\nCaused by: a.ParseException: \n[SYNTAX] near 'with'.\n\n\tat a.c",
            "a.ParseException: [SYNTAX] near 'with'.",
        ),
        (f"{CALLED}a.SparkException: Exception thrown in awaitResult:\n\tat a.b\nCaused by: a.NoText:\n\tat a.c", "a.NoText:"),
        ("a.Failure:\n\tat a.b(C.scala:1)", "a.Failure:"),
        ("", ""),
    ],
)
def test_the_line_that_says_what_has_happened(text: str, line: str) -> None:
    assert of_java(text) == line
