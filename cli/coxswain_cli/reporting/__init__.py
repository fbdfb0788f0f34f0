"""The report of a run: read a work directory, draw one self-contained HTML page. Pure functions from values to markup."""
