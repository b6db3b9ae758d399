"""Files copied verbatim into exported folders; independent of tensorir."""
