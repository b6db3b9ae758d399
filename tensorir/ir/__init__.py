"""The trees that every other part reads and rewrites: expressions, statements, types, and their text."""
