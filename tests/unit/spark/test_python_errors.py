"""Errors of Python functions that workers catch: each row that fails alone is noted, whatever the function is given at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType

from airflow_poison.spark.python_errors import CAUGHT, Notes, PythonErrors, all_noted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROWS, COLUMNS, ARROW, SERIES, FRAMES, BATCHES = 100, 200, 250, 204, 205, 207
TEXTS = st.lists(st.lists(st.sampled_from(["1", "2", "bad", "worse"]), min_size=1, max_size=30), min_size=1, max_size=4)


def number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(text)
    return int(text)


def amounts(texts: pd.Series) -> pd.Series:
    return texts.map(number)


def of_arrow(texts: Any) -> Any:
    return pa.array(map(number, texts.to_pylist()), pa.int32())


def each(function: Any) -> Any:
    def made(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            yield function(batch)

    return made


def of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(amount=frame["text"].map(number))


def of_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"amount": of_arrow(batch.column("text"))})


def worked(kind: int, function: Any, batches: list[Any]) -> tuple[list[Any], PythonErrors | None]:
    """Return what a function makes of batches where its errors are caught, and what is noted."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Notes(f"{folder}/0.1.0")
        caught = CAUGHT[kind](function, IntegerType(), notes)
        made = list(caught(iter(batches))) if kind in {SERIES, FRAMES, BATCHES} else [caught(batch) for batch in batches]
        notes.write()
        found = [each for _, each in all_noted(folder)]
    return made, found[0] if found else None


def bad(batches: list[list[str]]) -> dict[int, str]:
    """Return the rows that fail, with the end of their tracebacks."""
    texts = [text for batch in batches for text in batch]
    return {row: f"ValueError: {text}" for row, text in enumerate(texts) if not text.isdigit()}


def ends(found: PythonErrors | None) -> dict[int, str]:
    return {} if found is None else {row: trace.strip().splitlines()[-1] for row, trace in found.errors.items()}


@given(TEXTS)
def test_rows_of_any_form_are_noted_and_no_others(batches: list[list[str]]) -> None:
    forms: list[tuple[int, Any, list[Any]]] = [
        (ROWS, number, [text for batch in batches for text in batch]),
        (COLUMNS, amounts, [pd.Series(batch) for batch in batches]),
        (ARROW, of_arrow, [pa.array(batch) for batch in batches]),
        (SERIES, each(amounts), [pd.Series(batch) for batch in batches]),
        (FRAMES, each(of_frame), [pd.DataFrame({"text": batch}) for batch in batches]),
        (BATCHES, each(of_batch), [pa.record_batch({"text": batch}) for batch in batches]),
    ]
    for kind, function, given_ in forms:
        made, found = worked(kind, function, given_)
        assert ends(found) == bad(batches), kind
        assert found is None or found.rows == sum(map(len, batches))
        if kind in {COLUMNS, ARROW, SERIES}:
            assert list(map(len, made)) == list(map(len, batches)), "Spark wants as many rows as it has given"


@given(TEXTS)
def test_rows_with_a_lookup_id_are_noted_by_it(batches: list[list[str]]) -> None:
    first, frames = 100, list[pd.DataFrame]()
    for batch in batches:
        frames.append(pd.DataFrame({"lookup_id": range(first, first + len(batch)), "text": batch}))
        first += len(batch)

    for kind, function, given_ in (
        (FRAMES, each(of_frame), frames),
        (BATCHES, each(of_batch), [pa.RecordBatch.from_pandas(frame) for frame in frames]),
    ):
        _, found = worked(kind, function, given_)
        assert ends(found) == {row + 100: text for row, text in bad(batches).items()}
        assert found is None or found.named


def test_an_error_that_no_row_makes_alone_fails_the_task() -> None:
    def few(texts: pd.Series) -> pd.Series:
        if len(texts) > 3:
            raise MemoryError
        return texts

    for kind, function in ((COLUMNS, few), (SERIES, each(few))):
        with pytest.raises(MemoryError):
            worked(kind, function, [pd.Series(["1"] * 9)])


def test_an_error_before_the_first_row_fails_the_task() -> None:
    def unready(batches: Iterator[Any]) -> Iterator[Any]:
        if hasattr(batches, "last"):
            raise ConnectionError
        yield from batches

    with pytest.raises(ConnectionError):
        worked(BATCHES, unready, [pa.record_batch({"text": ["1"]})])


def test_the_end_of_an_iterator_is_left_to_spark() -> None:
    def ends_early(_given: Any) -> Any:
        return next(iter(()))

    for kind, batch in ((ROWS, "1"), (COLUMNS, pd.Series(["1"]))):
        with pytest.raises(StopIteration):
            worked(kind, ends_early, [batch])


def test_a_function_goes_on_behind_a_batch_and_keeps_what_it_made_before() -> None:
    made, found = worked(BATCHES, each(of_batch), [pa.record_batch({"text": [text]}) for text in ("1", "bad", "2")])

    assert [batch.column(0).to_pylist() for batch in made] == [[1], [2]]
    assert ends(found) == {1: "ValueError: bad"}


def test_columns_that_are_given_by_name_are_cut_as_well() -> None:
    def sums(left: pd.Series, *, right: pd.Series) -> pd.Series:
        return left.map(number) + right.map(number)

    with tempfile.TemporaryDirectory() as folder:
        notes = Notes(f"{folder}/0.1.0")
        CAUGHT[COLUMNS](sums, IntegerType(), notes)(pd.Series(["1", "2", "3"]), right=pd.Series(["1", "bad", "3"]))
        notes.write()
        assert ends(all_noted(folder)[0][1]) == {1: "ValueError: bad"}


def test_notes_are_of_their_partition(tmp_path: Path) -> None:
    notes = Notes(str(Path(tmp_path, "1.7.0")))
    notes.add(0, "ValueError: bad")
    notes.write()

    assert [partition for partition, _ in all_noted(str(tmp_path))] == [1]
