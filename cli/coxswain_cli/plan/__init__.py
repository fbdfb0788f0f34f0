"""`cox plan ...`: plans without a cluster. Each command has a module; `coxswain_cli.__main__` registers them."""
