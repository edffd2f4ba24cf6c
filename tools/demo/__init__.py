"""The demo: a year of flights through a protected job with retry cycles, in a real Airflow of its own (`make demo`)."""
