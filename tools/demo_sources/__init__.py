"""The demo of sources: what grows elsewhere lands once, while who takes and who receives is killed."""
