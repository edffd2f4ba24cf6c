"""Bodies are read by ``values.json_text`` alone: Python's own JSON goes through doubles and drops one of two equal names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import airflow_poison

PACKAGE = Path(airflow_poison.__file__).parent
READERS = {"load", "loads", "JSONDecoder"}
NOT_BODIES = {
    "values/json_text.py": "reads bodies exactly",
    "cli/values.py": "what people give or set",
    "hooks/connection.py": "what people give or set",
    "operators/base.py": "what people give or set",
    "dialogs/services.py": "what people give or set",
    "sources/schemas.py": "what people give or set",
    "dialogs/transaction.py": "what the package itself writes into the queue's table, its stage and its notes",
    "dialogs/acts.py": "what the package itself writes into the queue's table, its stage and its notes",
    "dialogs/as_rows.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/progress.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/recovered.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/outage.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/failurelog.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/returned.py": "what the package itself writes into the queue's table, its stage and its notes",
    "desk/plans.py": "what the package itself writes into the queue's table, its stage and its notes",
    "desk/rule_runs.py": "what the package itself writes into the queue's table, its stage and its notes",
    "desk/sql.py": "what the package itself writes into the queue's table, its stage and its notes",
    "values/masking.py": "what the package itself writes into the queue's table, its stage and its notes",
    "delivery/landing_rows.py": "what the package itself writes into the queue's table, its stage and its notes",
    "passes/application.py": "what the package itself writes into the queue's table, its stage and its notes",
    "passes/submitted.py": "what the package itself writes into the queue's table, its stage and its notes",
    "values/schema.py": "what the package itself writes into the queue's table, its stage and its notes",
    "spark/executors.py": "what the package itself writes into the queue's table, its stage and its notes",
    "spark/nodes.py": "what the package itself writes into the queue's table, its stage and its notes",
    "spark/python_errors.py": "what the package itself writes into the queue's table, its stage and its notes",
    "store/data_files.py": "what the package itself writes into the queue's table, its stage and its notes",
    "store/history.py": "what the package itself writes into the queue's table, its stage and its notes",
    "store/plans.py": "what the package itself writes into the queue's table, its stage and its notes",
    "passes/land.py": "what the package itself writes into the queue's table, its stage and its notes",
    "passes/spans.py": "what the package itself writes into the queue's table, its stage and its notes",
    "store/stage.py": "what the package itself writes into the queue's table, its stage and its notes",
    "testing/sources.py": "what the package itself writes into the queue's table, its stage and its notes",
    "cli/sources.py": "what the package itself writes into the queue's table, its stage and its notes",
    "ui/posts.py": "what the package itself writes into the queue's table, its stage and its notes",
    "outputs/table_rules.py": "logs and schemas of Delta Lake",
    "sources/delta_changes.py": "logs and schemas of Delta Lake",
    "sources/documents.py": "where the values of documents end",
    "store/bucket_store.py": "logs and schemas of Delta Lake",
    "store/checkpoints.py": "logs and schemas of Delta Lake",
    "store/entries.py": "logs and schemas of Delta Lake",
    "store/log_damage.py": "logs and schemas of Delta Lake",
    "outputs/output_table.py": "logs and schemas of Delta Lake",
    "store/past.py": "logs and schemas of Delta Lake",
}
"""Modules that use Python's JSON, and what they read."""


def readers_in(path: Path) -> list[int]:
    """Return the lines of a module that call a reader of Python's own JSON, of pandas, orjson or msgspec."""
    tree = ast.parse(path.read_text())
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in READERS and isinstance(node.value, ast.Name) and node.value.id in {"json", "orjson"}
    ]


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if readers_in(path))


@pytest.mark.parametrize("module", MODULES)
def test_only_what_is_no_body_is_read_by_pythons_json(module: str) -> None:
    assert module in NOT_BODIES, f"{module} reads JSON in lines {readers_in(PACKAGE / module)}: read bodies by values.json_text, or say what it reads"


def test_the_list_names_no_module_that_reads_none() -> None:
    assert set(NOT_BODIES) == set(MODULES)
