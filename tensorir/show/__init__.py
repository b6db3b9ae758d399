"""Displays for notebooks: every public object as static HTML, and the live cell of a tuning run."""
