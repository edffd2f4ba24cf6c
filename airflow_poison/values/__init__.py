"""Values that every room knows: messages, events, errors, clocks, texts. No tables and no processes."""
