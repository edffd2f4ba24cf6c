"""Servers on loopback that the demo and the tests start: an object store, and Spark clusters."""
