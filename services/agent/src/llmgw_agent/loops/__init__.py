"""Observe, decide, act, repeat."""
