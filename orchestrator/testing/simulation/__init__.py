"""The whole system in one process, in an order that one seed decides: its Redis, on Lua tables."""
