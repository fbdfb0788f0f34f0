"""The former name of `coxswain_train.checkpoint.export`, kept for one release."""

import sys

from coxswain_train.checkpoint.export import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
