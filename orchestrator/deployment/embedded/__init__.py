"""The embedded Valkey: its process, the server manager that outlives any one `up`, and how an `up` joins it."""
