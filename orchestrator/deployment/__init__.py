"""A whole stack on one machine: its processes, their supervisor, and the embedded server."""
