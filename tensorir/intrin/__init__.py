"""Hardware instructions as data (Intrin), and the matcher that recognizes them in loop nests."""
