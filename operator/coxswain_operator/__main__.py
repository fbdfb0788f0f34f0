"""`python -m coxswain_operator`: can be told to leave from its first moment on; all the rest is `process`."""

from coxswain_link.bootstrap import bootstrap

if __name__ == "__main__":
    bootstrap("coxswain_operator.process")
