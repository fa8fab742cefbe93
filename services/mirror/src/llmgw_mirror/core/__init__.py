"""What the mirror decides: names, states, resuming, ranges. No I/O, no clock, no chance."""
