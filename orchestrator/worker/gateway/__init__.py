"""The gateway of a run for programs that its agent starts: the effects of its context, over a socket of its own."""
