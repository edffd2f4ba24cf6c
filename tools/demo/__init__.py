"""The demo: a year of flights through a queue with retry cycles, in a real Airflow of its own (`make demo`)."""
