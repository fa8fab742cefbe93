"""The lab: the whole suite as processes of one machine, for a first look, and for end-to-end tests.

Knows the services by what a user types (their commands and settings), never by their modules.
"""
