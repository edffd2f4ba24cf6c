"""Masks: what they hide of bodies, properties and texts, and that they are refused when they are none."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_poison.values.errors import SettingError
from airflow_poison.values.failures import Failure, FailureKind, origin
from airflow_poison.values.masking import EDITS, HIDDEN, HiddenValues, Masking, edits_of

CARD = "4111111111111111"
QUOTED = 'o\'Neill "x"'


def mask(*paths: str) -> Masking:
    found = Masking.read(list(paths))
    assert found is not None
    return found


def hidden(masking: Masking, body: object) -> object:
    return json.loads(masking.body(json.dumps(body).encode()))


def values(body: object, *paths: str, properties: dict[str, str] | None = None) -> HiddenValues:
    return mask(*(paths or ("$.card",))).values(json.dumps(body).encode(), properties or {})


# Paths ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        ("$.card", {"card": CARD, "a": 1}, {"card": "***", "a": 1}),
        ("$.a.b", {"a": {"b": [1, {"c": 2}], "d": 3}}, {"a": {"b": "***", "d": 3}}),
        ("$.items[*].card", {"items": [{"card": 1}, {"x": 2}, {"card": 3}]}, {"items": [{"card": "***"}, {"x": 2}, {"card": "***"}]}),
        ("$.items.card", {"items": [{"card": 1}, [{"card": 2}]]}, {"items": [{"card": "***"}, [{"card": "***"}]]}),
        ("$.items[1]", {"items": [1, 2, 3]}, {"items": [1, "***", 3]}),
        ("$.any.*", {"any": {"x": 1, "y": [2]}, "z": 3}, {"any": {"x": "***", "y": "***"}, "z": 3}),
        ("$['a name'].x", {"a name": {"x": 1}}, {"a name": {"x": "***"}}),
        ('$["a.b"]', {"a.b": 1, "a": {"b": 2}}, {"a.b": "***", "a": {"b": 2}}),
        ("$.card", [{"card": 1}, {"card": 2}], [{"card": "***"}, {"card": "***"}]),
        ("$.straße", {"straße": None}, {"straße": "***"}),
        ("$", {"a": 1}, "***"),
        ("$.missing", {"a": 1.50}, {"a": 1.5}),
    ],
)
def test_a_path_hides_what_it_leads_to(path: str, body: object, shown: object) -> None:
    assert hidden(mask(path), body) == shown


@pytest.mark.parametrize(
    "path", ["", "card", "$card", "$.", "$.a.", "$..a", "$.a[", "$.a[x]", "$.a[-1]", "properties", "properties.", "propertiesx", "$.a b"]
)
def test_what_is_no_path_is_refused_by_name(path: str) -> None:
    with pytest.raises(SettingError, match=r"mask=.*allowed: \$\.name"):
        mask("$.good", path)


@pytest.mark.parametrize("given_mask", [7, {"a": 1}, ["$.a", 3]])
def test_what_is_no_list_of_paths_is_refused(given_mask: object) -> None:
    with pytest.raises(SettingError, match="a list of paths"):
        Masking.read(given_mask)


def test_one_path_is_a_list_of_one_and_an_empty_list_hides_nothing() -> None:
    assert Masking.read("$.card") == Masking.read(("$.card", "$.card")) == Masking(("$.card",))
    assert Masking.read([]) is Masking.read(None) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
)


# Bodies and properties ------------------------------------------------------------------------------------------------


def test_numbers_keep_their_digits_and_names_that_stand_twice_are_both_hidden() -> None:
    body = b'{"card": 1, "n": 1.500, "big": 123456789012345678901234567890, "card": 2, "x": NaN}'
    assert mask("$.card").body(body) == b'{"card": "***", "n": 1.500, "big": 123456789012345678901234567890, "card": "***", "x": NaN}'


@pytest.mark.parametrize(
    "body", [b"id;card\n7;4111111111111111", b'{"card": "4111111111111111"', b"\xff\x00", b'{"a": 1}{"card": 2}', b"[" * 100_000]
)
def test_a_body_that_is_no_json_is_hidden_whole(body: bytes) -> None:
    assert mask("$.card").body(body) == HIDDEN.encode()


def test_zero_keeps_its_sign_beside_hidden_values() -> None:
    assert mask("$.card").body(b'{"card": 1, "balance": -0, "day": "2026-01-01"}') == b'{"card": "***", "balance": -0, "day": "2026-01-01"}'


def test_an_empty_body_and_a_body_that_no_path_leads_into_stay() -> None:
    assert mask("$.card").body(b"") == b""
    assert mask("properties.token").body(b"no json") == b"no json"


def test_other_encodings_of_json_are_read() -> None:
    assert hidden(mask("$.card"), {}) == {}
    assert mask("$.card").body('{"card": "ü"}'.encode("utf-16")) == b'{"card": "***"}'


def test_properties_are_hidden_by_name() -> None:
    given_properties = {"token": "s3", "a.b": "x", "other": "y"}
    assert mask("properties.token", "properties.a.b").properties(given_properties) == {"token": "***", "a.b": "***", "other": "y"}
    assert set(mask("properties.*").properties(given_properties).values()) == {"***"}
    assert mask("properties['a.b']", "$.x").properties(given_properties) == {**given_properties, "a.b": "***"}


def test_what_people_have_edited_is_hidden_in_its_history_too() -> None:
    former = base64.b64encode(json.dumps({"card": CARD, "a": 1}).encode()).decode()
    edits = json.dumps([{"body": former, "properties": {"token": "old-token", "x": None}, "plan": "p"}])
    masking = mask("$.card", "properties.token")
    [entry] = json.loads(masking.properties({EDITS: edits})[EDITS])
    assert json.loads(base64.b64decode(entry["body"])) == {"card": "***", "a": 1}
    assert entry["properties"] == {"token": "***", "x": None}
    assert masking.values(b"{}", {EDITS: edits}).hide(f"{CARD} old-token") == "*** ***"


@given(body=st.dictionaries(st.text(), json_values), path=st.sampled_from(["$.a", "$.*", "$.a.b", "$.a.c.a", "$"]))
def test_bodies_that_python_writes_the_same_are_hidden_as_others_are(body: dict[str, object], path: str) -> None:
    text = json.dumps(body | {"a": {"b": 1, "c": [body]}}).encode()
    masking = mask(path)
    assert masking.body(text) == masking._masked(text, [])


# Texts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text", "shown"),
    [
        (CARD, f"no {CARD}!", "no ***!"),
        (CARD, f"x{CARD}y", "x***y"),
        ('a"b\\c', r'body {"card": "a\"b\\c"}', 'body {"card": "***"}'),
        (QUOTED, f"error {QUOTED!r}", "error '***'"),
        ("Zoë Müller", json.dumps("Zoë Müller"), '"***"'),
        ("Zoë Müller", repr("Zoë Müller".encode()), "b'***'"),
        ("Zoë Müller", repr(json.dumps("Zoë Müller")), "'\"***\"'"),
        ("a@b.example", "GET /find?mail=a%40b.example&x=1", "GET /find?mail=***&x=1"),
        ("two\nlines of it", "first: two\nthen lines of it", "first: ***\nthen ***"),
        ("with\ttab\x01", "with\ttab\\x01 there", "*** there"),
        (4111, "4111 and 4111.0 and 4,111, not 24111 nor 41112", "*** and *** and ***, not 24111 nor 41112"),
        (12.50, "12.5 and 12.50", "*** and 12.50"),
        (7, "7 of 17, line 7, 7.5, x7", "*** of 17, line ***, ***.5, x7"),
        ("VX", "VX in VXII", "*** in VXII"),
        (True, "True or true, not trueish", "*** or ***, not trueish"),
        (None, "None of null", "None of null"),
        ("", "nothing to hide", "nothing to hide"),
        ([CARD, {"deep": "secret word"}], f"{CARD}: secret word", "***: ***"),
        ("aaaa", "aaaaa", "***"),
    ],
)
def test_a_value_is_hidden_wherever_it_stands(value: object, text: str, shown: str) -> None:
    assert values({"card": value}).hide(text) == shown


def test_numbers_are_hidden_as_they_are_written_in_the_body() -> None:
    found = mask("$.card").values(b'{"card": 12.50}', {})
    assert found.hide("12.50, 12.5") == "***, ***"


def test_values_that_overlap_are_hidden_together() -> None:
    assert values({"card": "abcdef", "b": "defghi"}, "$.card", "$.b").hide("abcdefghi abcdef") == "*** ***"


@pytest.mark.parametrize(
    "text", [f"bad card {CARD[:9]}…", f"bad card {CARD[:9]}... and more", f"…{CARD[9:]} was bad", f"ValueError: x {CARD[:2]}…\n\nthen:\n"]
)
def test_a_value_is_hidden_where_a_text_was_cut_in_the_middle_of_it(text: str) -> None:
    shown = values({"card": CARD}).hide(text)
    assert HIDDEN in shown
    assert not any(character.isdigit() for character in shown)


def test_a_value_longer_than_any_text_is_hidden() -> None:
    long = "".join(chr(97 + number % 26) for number in range(10_000))
    assert values({"card": long}).hide(f"bad: {long[:4000]}…") == "bad: ***…"
    assert values({"card": long}).hide(f"…{long[-4000:]}\nend") == "…***\nend"


def test_texts_about_a_body_that_is_no_json_are_hidden_whole() -> None:
    found = mask("$.card").values(b"7;4111", {})
    assert found.hide("could not read 7") == HIDDEN
    assert found.hide_trace('  File "/a.py", line 7, in land\n    raise E(card)\nE: 4111\n') == '  File "/a.py", line 7, in land\n'
    assert found.hide("") == ""


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_texts_about_a_body_in_another_encoding_are_hidden_whole(codec: str) -> None:  # its bytes in a text have NUL between the signs of a value
    body = json.dumps({"card": CARD}).encode(codec)
    assert mask("$.card").values(body, {}).hide(f"no such card: {body!r}") == HIDDEN


def test_lines_that_name_the_code_stay_so_that_the_fingerprint_does() -> None:
    trace = '  File "/shop/land.py", line 41, in land\n    land(41)\n'
    failure = Failure(FailureKind.EXCEPTION, "ValueError", "41", trace)
    for value in (41, "land", "/shop/land.py", 42):
        shown = values({"card": value}).hide_trace(trace)
        assert origin(Failure(FailureKind.EXCEPTION, "ValueError", "***", shown)) == origin(failure)
    assert values({"card": 41}).hide_trace(trace).endswith("    land(***)\n")


def test_many_values_are_found_as_one_is() -> None:
    several = HiddenValues.of_all([values({"card": f"secret-{number:05}"}) for number in range(2_000)])
    assert several.hide("first secret-00007, then secret-01999; secret-99999") == "first ***, then ***; secret-99999"
    assert several.hide("cut: secret-019…") == "cut: ***…"


@given(body=st.dictionaries(st.text(), json_values))
def test_what_no_path_leads_to_stays(body: dict[str, object]) -> None:
    assert hidden(mask("$['no such name at all']"), body) == body


@given(secret=st.text(min_size=4), before=st.text(), behind=st.text())
def test_no_text_has_a_value(secret: str, before: str, behind: str) -> None:
    shown = values({"card": secret}).hide(before + secret + behind)
    assert secret not in shown.replace(HIDDEN, "\0") or secret in HIDDEN


# Bare values, and what senders have written as poison.edits ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("4111222233334444", '"***"'),
        ('"4111222233334444"', '"***"'),
        ("true", '"***"'),
        ("null", "null"),
        ('["4111", [4111]]', '["***", ["***"]]'),
        ('[{"card": 1, "n": 2}, 4111]', '[{"card": "***", "n": 2}, "***"]'),
        ('{"n": ["4111"], "other": 4111}', '{"n": ["4111"], "other": 4111}'),
        ("4111 2222", "***"),
    ],
)
@pytest.mark.parametrize("path", ["$.card", "$.a.b", "$[*].card"])
def test_a_value_without_a_name_is_hidden(body: str, shown: str, path: str) -> None:
    # given
    masking = Masking((path,))
    expected = '[{"card": 1, "n": 2}, "***"]' if path == "$.a.b" and "card" in body else shown
    # then
    assert masking.body(body.encode()).decode() == expected
    told = masking.values(body.encode(), {}).hide(f"no card {body}")
    assert ("4111" in told) == ("other" in body)


_FORGED = [
    '[{"body":"abc"}]',
    '[{"body":5}]',
    '[{"properties":[1]}]',
    "not json",
    "[" * 10_000,
    "5",
    '[{"body": "YQ", "properties": {}, "plan": "p"}]',
]


@pytest.mark.parametrize("text", _FORGED)
def test_edits_of_a_sender_are_ordinary_text_that_is_hidden_where_bodies_are(text: str) -> None:
    # given
    properties = {EDITS: text}
    hiding, open_ = Masking(("$.card",)), Masking(("properties.token",))
    # then
    assert edits_of(properties) == []
    assert hiding.properties(properties) == {EDITS: "***"}
    assert open_.properties(properties) == properties
    assert text not in hiding.values(b'{"card": 1}', properties).hide(f"it says {text}") or len(text) == 1


def test_a_hidden_value_of_many_brackets_ends_nothing() -> None:
    # given
    deep = b'{"card": ' + b"[" * 900 + b"4111" + b"]" * 900 + b"}"
    # then
    assert b"4111" not in Masking(("$.card",)).body(deep)
    assert "4111" not in Masking(("$.card",)).values(deep, {}).hide("no 4111")


def written_by_others(secret: str, ways: list[int]) -> str:
    """Return a text as a writer of JSON may have it that chooses other escapes than Python."""
    made, units = list[str](), secret.encode("utf-16-be")
    for place in range(0, len(units), 2):
        unit, way = int.from_bytes(units[place : place + 2]), ways[place // 2 % len(ways)]
        plain = way == 0 and chr(unit) not in '"\\' and 0x20 <= unit < 0xD800
        made.append(chr(unit) if plain else "\\/" if (unit, way) == (ord("/"), 1) else f"\\u{unit:04X}" if way == 2 else f"\\u{unit:04x}")
    return "".join(made)


@given(st.text(st.sampled_from('aB/+&<"\\\né😀 '), min_size=4, max_size=9), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 2))
@example("abc/def/ghi", [1], 1)
@example("ann+shop@example.com", [2], 1)
@example("😀😀/x", [3, 2], 2)
def test_a_value_is_hidden_whichever_escapes_its_sender_has_chosen(secret: str, ways: list[int], times: int) -> None:
    written = written_by_others(secret, ways)
    body = f'{{"card": "{written}"}}'
    assert json.loads(body) == {"card": secret}
    text = f"no such account: {json.dumps(body) if times > 1 else body}"

    shown = mask("$.card").values(body.encode(), {}).hide(text)

    assert (json.dumps(written)[1:-1] if times > 1 else written) not in shown
    assert shown.startswith("no such account: ")
