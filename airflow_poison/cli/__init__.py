"""The command line: ``airflow poison ...``, and ``python -m airflow_poison ...`` without Airflow."""
