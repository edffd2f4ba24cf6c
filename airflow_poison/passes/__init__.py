"""Passes: what is done with a queue and its conversations, each in commits that can be repeated."""
