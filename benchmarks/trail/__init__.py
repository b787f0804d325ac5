"""What the benchmarks of the audit trail have in common."""
