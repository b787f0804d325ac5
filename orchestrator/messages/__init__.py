"""Envelopes that our own parts send, and which callbacks in a text are authentic."""
