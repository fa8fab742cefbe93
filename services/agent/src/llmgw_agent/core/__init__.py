"""Decisions of the agent: no I/O, clock or chance in here."""
