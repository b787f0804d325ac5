"""Dead letters: stored, reported, replayed, dropped."""
