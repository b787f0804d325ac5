"""The frame of every service process: signals, readiness, signs of life, and its end with its parent."""
