"""Consequences of state: deliveries after a stop, and the sweep that completes what a crash left."""
