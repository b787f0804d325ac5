"""The stack from Python: submit, wait, look, reply, stop."""
