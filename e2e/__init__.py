"""End-to-end tests and their tools; run from the repository root, never installed."""
