"""`python -m coxswain_operator`: can be told to leave from its first moment on; all the rest is `process`."""

from coxswain_link.start import start

if __name__ == "__main__":
    start("coxswain_operator.process")
