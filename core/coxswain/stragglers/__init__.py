"""Stragglers: which devices compute slower than planned, by how much, since when, and why. Pure: no clocks, no I/O."""
