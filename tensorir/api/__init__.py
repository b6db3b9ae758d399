"""The user's entry points: schedules, workloads, tuning, builds, loading, export."""
