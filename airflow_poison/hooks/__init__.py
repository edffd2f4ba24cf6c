"""The hook of connection type ``poison``."""
