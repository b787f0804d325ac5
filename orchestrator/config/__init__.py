"""Settings, server URLs, and which stack runs on a data folder."""
