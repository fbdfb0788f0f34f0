"""`python -m coxswain_train.agent`: the first process of a trainer container."""

from coxswain_link.environment import leave, run_service
from coxswain_train.agent.agent import main

if __name__ == "__main__":
    leave(run_service(main))
