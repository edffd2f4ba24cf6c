"""What Airflow loads of this package besides the provider."""
