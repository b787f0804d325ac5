"""What every service process has: signals, readiness, heartbeats, and an end when its parent dies."""
