"""Revisions, a module each."""
