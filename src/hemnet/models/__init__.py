"""Models: made by name, saved, loaded, converted from other projects, and what they cost."""
