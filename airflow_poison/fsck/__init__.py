"""Checks of a queue table: what is wrong with it, and its repair without the verbs. Stands above the store and the journals of ``delivery``."""
