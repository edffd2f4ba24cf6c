"""The product without Airflow: rules, delivery, store, Spark and verbs. Nothing here imports airflow."""
