"""Devices, compilation with an artifact cache, launches, timing."""
