"""What notebooks display: programs and tuning runs as static HTML."""
