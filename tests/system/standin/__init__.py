"""A container engine and base images for the system tests, on a machine that can pull neither."""
