"""Python imports this when it starts with this folder on its path: also Spark's workers keep what they force to disk then."""

from tests.sessions.platter import watch_as_told

watch_as_told()
