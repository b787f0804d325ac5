"""Transcripts: what was said in each run of a session, kept by workers and read again for people."""
