"""Redis: every key, the scripts that change them, and the connection."""
