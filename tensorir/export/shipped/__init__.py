"""Files that are copied as they are into exported folders; they know nothing of the package."""
