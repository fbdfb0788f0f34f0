"""The ladder: what to do about slow devices, by what it gains against what it costs. Pure."""
