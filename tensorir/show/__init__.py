"""Notebook displays: static HTML of public objects, and a live cell during tuning."""
