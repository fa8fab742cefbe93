"""A fault drill that ships: a scripted engine, and the wire rules tried on a live router before it."""
