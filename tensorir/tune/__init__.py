"""The search for the fastest configuration: spaces, strategies, measurements in child processes, and the log."""
