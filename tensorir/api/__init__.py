"""What a user calls: workloads, tuning, builds, benchmarks."""
