"""One task at the server: definition, schedule, history, outputs."""
