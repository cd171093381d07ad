"""The largest values that are accepted."""

MAX_PIXELS = 150_000_000  # of a file that is opened without being asked twice: 12,247 × 12,247
MAX_ITERATIONS = 1000  # of EM: hours, and no change any more
