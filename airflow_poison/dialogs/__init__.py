"""Conversations: the rules of Service Broker's dialogs (spec sections 1.5 to 1.8). Pure: a conversation endpoint is a state machine."""
