"""Tables where returned rows land: what they can hold, and how rows get there."""
