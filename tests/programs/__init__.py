"""The presets with the real programs, against a server on this machine: ``make test-programs``."""
