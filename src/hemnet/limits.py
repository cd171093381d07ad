"""The largest values that are accepted."""

MAX_ITERATIONS = 1000  # of EM: hours, and no change any more
