"""The desk: what people do with many messages. Find and group them, plan what is to become of them, apply it in chunks, undo it."""
