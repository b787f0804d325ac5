"""Documents of the commands with ``--json``, a model each."""
