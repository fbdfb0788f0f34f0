"""Alias of `coxswain_link.bootstrap`, which pods start because images may be older."""

import sys

from coxswain_link.bootstrap import bootstrap

if __name__ == "__main__":
    del sys.argv[0]
    bootstrap(sys.argv[0])
