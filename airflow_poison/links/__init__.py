"""Links from tasks to the pages of their queues."""
