# PYTHON_ARGCOMPLETE_OK
"""``python -m airflow_poison``: the commands that need no Airflow."""

from __future__ import annotations

from airflow_poison.cli.main import main

if __name__ == "__main__":
    main()
