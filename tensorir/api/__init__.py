"""The calls of a user: workloads, tuning, builds, benchmarks."""
