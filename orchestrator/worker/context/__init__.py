"""The context with which an agent is called, composed of what it sees, sends and delegates."""
