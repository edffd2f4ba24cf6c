"""The verbs of conversations: begin a dialog, send on it, end it, set its timer; and what carries its messages (spec sections 1.5 to 1.7)."""
