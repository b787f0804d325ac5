"""Keys: private ones in files of the data folder, public ones registered in Redis, trust in between."""
