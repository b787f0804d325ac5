"""What agents, programs and people may ask of the system: one request for each verb, which every entrance takes."""
