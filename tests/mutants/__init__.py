"""Mutation testing: `make mutants` makes small faults in a copy of the sources.

It runs the nearest tests on each fault. `modules.toml` says which tests judge which modules;
`accepted.toml` lists the survivors that no test can kill.
"""
