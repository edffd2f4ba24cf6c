"""What is wrong with a protected job, or a stream, is known before a queue is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import Files, Msmq4, protect
from airflow_poison.values.errors import SettingError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("setting", "error", "words"),
    [
        ({"keys": ["id"]}, TypeError, "keys: a receive has no such setting"),
        ({"on_bad_cell": "drop"}, SettingError, "on_bad_cell='drop'"),
        ({"source": Files("/landing/*.json")}, SettingError, "the rows are those of the DataFrame or the stream"),
    ],
)
def test_a_setting_that_is_none_is_an_error_before_a_stream_starts(
    tmp_path: Path, setting: dict[str, Any], error: type[Exception], words: str
) -> None:
    policy = Msmq4(receive_error_handling="Move")

    with pytest.raises(error, match=words):
        protect("orders", store=str(tmp_path / "store"), policy=policy, transform=lambda df: df, output=str(tmp_path / "out"), **setting)
    assert not (tmp_path / "store").exists()
