"""Values that every package knows: messages, events, errors, clocks, texts. No tables and no processes."""
