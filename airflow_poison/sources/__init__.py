"""Sources: what arrives somewhere else becomes messages, each once. One class for each kind of source behind one interface (``source``)."""
