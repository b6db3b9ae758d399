"""Engines: tiled schedules of matrix products per target, with knobs and performance models."""
