"""From a model and images to class maps, and to scores where there are labels."""
