"""Frame of every service process: signals, readiness, heartbeats, and an end when its parent dies."""
