"""Decisions of the data plane: no I/O, no clock, no chance. Imported by relay workers, so nothing heavy."""
