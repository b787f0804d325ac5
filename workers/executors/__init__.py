"""What runs an agent: one module for each kind of executor."""
