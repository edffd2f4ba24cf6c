"""Watching queues: what is asked of one, cheap looks at a store, and one poller for everybody who waits."""
