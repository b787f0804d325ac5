"""What a run offers to the programs that its agent starts: the effects of its context, over a socket of its own."""
