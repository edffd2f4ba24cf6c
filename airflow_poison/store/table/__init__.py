"""Queue tables over any log: layout, files, claims, stage, final commit, history."""
