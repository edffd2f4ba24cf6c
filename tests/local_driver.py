"""The driver of a submitted pass in this process: it delivers without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.passes.engines import LocalEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


class _Local(LocalEngine):
    """Delivers in this process."""

    def ship(self, _files: Sequence[str]) -> None:
        """Do nothing: they can be imported here."""


def without_jvm(patch: pytest.MonkeyPatch) -> None:
    """Let drivers deliver in this process."""
    patch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", lambda _: None)
    patch.setattr("airflow_poison.spark.engine.SparkEngine", lambda *_, **__: _Local())
