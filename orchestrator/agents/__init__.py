"""Agents: their definition, where they are loaded from, and the registry that all parts read."""
