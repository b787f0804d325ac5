"""From a claim to its commit: slots, runs, leases, attempts."""
