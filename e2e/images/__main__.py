"""`python -m e2e.images [operator|data|train|train-slim ...]`: builds the images (all without
arguments), prints their sizes.

`python -m e2e.images tidy` removes what a killed build left: containers, their mounts, layers
without a name.
"""

from __future__ import annotations

import sys
import time

from e2e.images.build import Images
from e2e.images.buildah import BuildFailed
from e2e.images.recipe import RECIPES


def main(names: list[str]) -> int:
    if names == ["tidy"]:
        Images().tidy()
        return 0
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        print(f"unknown image {', '.join(unknown)}; there are: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    start = time.monotonic()
    try:
        for image in Images().build(*names):
            print(f"{image.size:>8}  {image.reference}")
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
