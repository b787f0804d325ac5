"""What an agent is called with, composed of what it sees, sends and delegates."""
