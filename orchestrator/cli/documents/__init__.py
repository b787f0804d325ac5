"""What the commands print with ``--json``: one model for each document."""
