"""What several test modules use: data, models, runs, servers and hosts made for tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the project
