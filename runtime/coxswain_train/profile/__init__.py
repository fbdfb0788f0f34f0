# ruff: noqa: A005  the command is `python -m coxswain_train.profile`
