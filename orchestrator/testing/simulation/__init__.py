"""A whole stack in one thread, in an order that one seed decides: processes, their Redis, clocks, deaths."""
