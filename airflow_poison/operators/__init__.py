"""Operators: thin. Each resolves the connection, calls one verb and reports."""
