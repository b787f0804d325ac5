"""Requests of agents, programs and people to the system: one for each verb, which every entrance takes."""
