"""The embedded Valkey: its process, the keeper that outlives any one `up`, and how an `up` joins it."""
