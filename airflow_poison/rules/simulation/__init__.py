"""Simulation: what would these settings do? Scripted messages, the real rules and the real receive loop, a virtual clock."""
