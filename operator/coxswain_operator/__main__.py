"""`python -m coxswain_operator`: handles SIGTERM from its first moment on; all the rest is `process`."""

from coxswain_link.bootstrap import bootstrap

if __name__ == "__main__":
    bootstrap("coxswain_operator.process")
