"""The verbs: what can be done with a queue, one file each."""
