"""Envelopes: their model, their XML, what makes one valid, and how they are sealed."""
