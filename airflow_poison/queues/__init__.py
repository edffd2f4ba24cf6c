"""The message queue provider that makes ``MessageQueueTrigger(scheme="poison")`` work."""
