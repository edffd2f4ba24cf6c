"""Delivery: carries policies out, in processes that may die."""
