"""Runtime: devices, compilation with an on-disk cache, kernel launches, timing."""
