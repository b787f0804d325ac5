"""From the bytes of an entry to a message that may be acted upon, or a rejection with its rule."""
