"""Hardware instructions as data, and the matcher that finds them in loop nests."""
