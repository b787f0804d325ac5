"""Servers of the Model Context Protocol: one for the session of a command-line agent, one for a person's assistant.

They need the extra `mcp`.
"""
