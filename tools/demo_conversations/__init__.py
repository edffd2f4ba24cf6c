"""The demo of conversations: a parts warehouse and a shop in a real Airflow, and an order that is poison (`make demo-conversations`)."""
