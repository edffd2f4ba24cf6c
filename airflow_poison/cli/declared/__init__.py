"""The commands and their arguments, declared once for both command lines. Airflow reads this at every command, so it imports nothing."""
