"""What runs a model: evaluation, training and what they share."""
