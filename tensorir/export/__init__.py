"""Exported folders that run without this package."""
