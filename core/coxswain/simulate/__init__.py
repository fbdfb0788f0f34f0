"""Traces of slow and lost devices, replayed in virtual time through the detector, the ladder and the layout planner. Pure."""
