"""The truth: queue tables, the claim and the final commit."""
