"""Bodies are read by ``core.json_text`` alone: Python's own JSON goes through doubles and drops one of two equal names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import airflow_poison

PACKAGE = Path(airflow_poison.__file__).parent
READERS = {"load", "loads", "JSONDecoder"}
NOT_BODIES = {
    "core/json_text.py": "reads bodies exactly",
    "cli/rules.py": "what people give or set",
    "cli/values.py": "what people give or set",
    "core/desk/given.py": "what people give or set",
    "hooks/connection.py": "what people give or set",
    "operators/base.py": "what people give or set",
    "operators/question.py": "what people give or set",
    "ui/desk.py": "what people give or set",
    "core/conversations/services.py": "what people give or set",
    "core/sources/schemas.py": "what people give or set",
    "core/conversations/dialog_state.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/conversations/endpoint.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/conversations_as_rows.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/delivery/outage.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/delivery/progress.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/delivery/sessions/crash_attribution.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/delivery/sessions/failurelog.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/delivery/sessions/returned.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/desk/masked_sql.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/desk/plans.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/desk/retention.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/desk/rule_runs.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/desk/sql.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/masking.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/outputs_as_rows.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/passes/application.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/passes/submitted.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/schema.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/sources/kafka_frame.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/spark/executors.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/spark/nodes.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/store/table/files.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/store/table/history.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/store/table/plans.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/store/table/sources.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/passes/land.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/passes/spanning.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/store/table/stage.py": "what the package itself writes into the queue's table, its stage and its notes",
    "testing/sources.py": "what the package itself writes into the queue's table, its stage and its notes",
    "cli/sources.py": "what the package itself writes into the queue's table, its stage and its notes",
    "ui/audit.py": "what the package itself writes into the queue's table, its stage and its notes",
    "core/output_rules.py": "logs and schemas of Delta Lake",
    "core/store/bucket/log.py": "logs and schemas of Delta Lake",
    "core/store/bucket/store.py": "logs and schemas of Delta Lake",
    "core/store/delta/checkpoints.py": "logs and schemas of Delta Lake",
    "core/store/delta/entry.py": "logs and schemas of Delta Lake",
    "core/store/delta/log_damage.py": "logs and schemas of Delta Lake",
    "core/store/delta/output_table.py": "logs and schemas of Delta Lake",
    "core/store/delta/past.py": "logs and schemas of Delta Lake",
    "core/sources/registry.py": "answers of a schema registry",
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
    assert module in NOT_BODIES, f"{module} reads JSON in lines {readers_in(PACKAGE / module)}: read bodies by core.json_text, or say what it reads"


def test_the_list_names_no_module_that_reads_none() -> None:
    assert set(NOT_BODIES) == set(MODULES)
