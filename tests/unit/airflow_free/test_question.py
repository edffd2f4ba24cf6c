"""The question about a halted queue shows what is suspected, and nothing in a message gets out of the block that it is shown in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

from airflow_poison.operators.question import meaning, question
from airflow_poison.passes.browse import MessageRow
from airflow_poison.passes.decide import Decision
from airflow_poison.passes.halts import HaltedEndpoint
from airflow_poison.store.control import QueueState
from airflow_poison.values.clock import in_zone
from airflow_poison.values.schema import SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markdown_it.token import Token

HALT = HaltedEndpoint("orders", SubQueue.MAIN, QueueState.DISABLED, "message 17 of queue 'orders' halted it: no such shop", 17, 5)
SENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = [
    "```\n# Approve this\n[click me](https://evil.example)\n```",
    "`````` and `` ` ``",
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "| a | b |\n|---|---|\n| x | y |",
    "~~~\n* **Leave it disabled**: harmless\n~~~",
    "\u202eelbasrever\x1b[2J\x00",
    "{{ conn.poison_default.password }} {% raw %}",
    "    indented\n\n* list",
    "![](https://evil.example/pixel)",
]


def row(**fields: object) -> MessageRow:
    plain = {"lookup_id": 17, "message_id": "m", "sub_queue": "main", "abort_count": 5, "move_count": 0, "enqueued_at": SENT, "body": b"the body"}
    return MessageRow(**{**plain, **fields})  # type: ignore[arg-type]  # the names are the fields'


def tokens(markdown: str) -> Iterator[Token]:
    """Every token, as GitHub's Markdown has them, also those in lines."""
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        yield token
        yield from token.children or ()


def prose(markdown: str) -> str:
    """What is no code: what Markdown makes headings, links, lists and HTML of."""
    return "\n".join(token.content for token in tokens(markdown) if token.type in {"text", "html_inline", "html_block"})


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["body", "error", "reason", "property", "type", "conversation"])
def test_no_text_of_a_stranger_becomes_markdown(place: str, text: str) -> None:
    fields: dict[str, dict[str, object]] = {
        "body": {"body": text.encode()},
        "error": {"last_error": {"type": text, "message": text}},
        "reason": {},
        "property": {"properties": {text: text}},
        "type": {"message_type": text, "group_id": text},
        "conversation": {"conversation_id": text},
    }
    halt = HaltedEndpoint("orders", SubQueue.MAIN, QueueState.DISABLED, text if place == "reason" else HALT.reason, 17, 5)
    body = question(halt, row(**fields[place]), 0).body
    plain = question(HALT, row(conversation_id="c" if place == "conversation" else None), 0).body

    kinds = {token.type for token in tokens(body)}
    assert not kinds & {"heading_open", "link_open", "image", "html_inline", "html_block"}
    assert [token.type for token in tokens(body)].count("list_item_open") == [token.type for token in tokens(plain)].count("list_item_open")
    assert "evil" not in prose(body)
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert len([token for token in tokens(body) if token.type == "table_open"]) == 1


def test_instants_are_in_the_zone_of_people() -> None:
    assert "| sent | 2026-01-02 03:04:05 UTC |" in question(HALT, row(), 0).body
    with in_zone("default_timezone", "Asia/Kolkata"):
        assert "| sent | 2026-01-02 08:34:05 IST |" in question(HALT, row(), 0).body


def test_the_body_of_a_message_is_shown_word_for_word() -> None:
    text = '{"a": "``` | \\" ü"}\n\tnext'
    shown = [token.content for token in tokens(question(HALT, row(body=text.encode()), 0).body) if token.type == "fence"]
    assert shown[-1] == f"{text}\n"


@pytest.mark.parametrize("body", [b"x" * 5_000, ("é" * 5_000).encode(), bytes(range(256)) * 100])
def test_a_long_body_is_cut_and_says_so(body: bytes) -> None:
    shown = question(HALT, row(body=body), 0, most_of_body=100).body
    assert f"({len(body):,} bytes" in shown
    assert "the beginning)" in shown
    assert len(shown) < 2_000


def test_a_huge_message_makes_a_small_question() -> None:
    huge = "x" * 1_000_000
    message = row(
        body=huge.encode(),
        properties={f"{huge}{n}": huge for n in range(100)},
        group_id=huge,
        conversation_id=huge,
        message_type=huge,
        last_error={"message": huge, "type": huge},
    )
    halt = HaltedEndpoint("orders", SubQueue.MAIN, QueueState.STOPPED, huge, 17)
    assert len(question(halt, message, 0).body) < 40_000


def test_a_body_of_thousands_of_brackets_is_asked_about_as_text() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    assert f"**Body** (10,000 bytes)\n\n```\n{deep}\n```" in question(HALT, row(body=deep.encode()), 0, most_of_body=20_000).body


def test_binary_and_empty_bodies_are_told_as_such() -> None:
    assert "no UTF-8 text: Base64" in question(HALT, row(body=b"\xff\xfe"), 0).body
    assert "//4=" in question(HALT, row(body=b"\xff\xfe"), 0).body
    assert "**Body**: empty." in question(HALT, row(body=b""), 0).body


def test_xml_is_shown_as_it_says_itself() -> None:
    shown = question(HALT, row(body="<order>Größe</order>".encode("utf-16")), 0).body
    assert "**Body** (42 bytes, XML in UTF-16)\n\n```\n<order>Größe</order>\n```" in shown


def test_the_answers_name_the_message_that_they_are_about() -> None:
    asked = question(HALT, row(conversation_id="d1"), 2)
    assert asked.subject == "Queue orders is disabled by message 17. What shall be done?"
    assert list(asked.options.values()) == [
        "Remove message 17 and enable",
        "Return message 17 and enable",
        "Enable, leave message 17 as it is",
        "Leave it disabled",
    ]
    assert "it is kept in ` orders;poison `, with 2 other messages of its conversation" in asked.body
    assert "2026-01-02 03:04:05 UTC" in asked.body


def test_without_a_suspect_there_is_nothing_to_remove_or_return() -> None:
    switched_off = HaltedEndpoint("orders", SubQueue.MAIN, QueueState.DISABLED, "the shop is closed", None)
    assert list(question(switched_off, None, 0).options.values()) == ["Enable", "Leave it disabled"]
    assert "by message" not in question(switched_off, None, 0).subject
    gone = question(HALT, None, 0)
    assert list(gone.options) == [Decision.ENABLE, Decision.LEAVE]
    assert "Message 17 is not in the queue any more." in gone.body


@pytest.mark.parametrize(
    ("place", "to_queue", "kept"),
    [(SubQueue.MAIN, None, "orders;poison"), (SubQueue.POISON, None, "orders.dead-letter"), (SubQueue.POISON, "museum", "museum")],
)
def test_it_says_where_a_removed_message_is_kept(place: SubQueue, to_queue: str | None, kept: str) -> None:
    halt = HaltedEndpoint("orders", place, QueueState.FAULTED, "why", 17)
    assert f"it is kept in ` {kept} `" in question(halt, row(), 0, to_queue=to_queue).body


def test_only_an_answer_that_was_offered_means_something() -> None:
    options = {decision.value: answer for decision, answer in question(HALT, row(), 0).options.items()}
    assert meaning(options, ["Remove message 17 and enable"]) is Decision.REMOVE
    assert meaning(options, ["Remove message 18 and enable"]) is None
    assert meaning(options, []) is None
    assert meaning(options, list(options.values())) is None


def test_a_property_with_a_pipe_is_shown_in_its_cell() -> None:
    body = question(HALT, row(properties={"shop|no": "a | b"}), 0).body
    shown = [token.content.strip() for token in tokens(body) if token.type == "code_inline"]
    assert {"shop|no", "a | b"} <= set(shown)
