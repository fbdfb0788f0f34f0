"""The former name of `coxswain_link.bootstrap`, which the pods of this release still start: their image may be older."""

import sys

from coxswain_link.bootstrap import bootstrap

if __name__ == "__main__":
    del sys.argv[0]
    bootstrap(sys.argv[0])
