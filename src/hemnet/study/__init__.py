"""Looking inside: pictures and measurements of what the method does."""
