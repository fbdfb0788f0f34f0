"""Builds the images of the Dockerfile without a daemon, as root, with Debian's buildah and
debootstrap.

Everything lies in `.cache/images`: buildah's storage, the archives that containerd imports, and the
folder of packages that the trainers of quick tests mount instead of carrying them in their image.
Nothing of it is built twice for the same content.
"""

from e2e.images.build import Image, Images

__all__ = ["Image", "Images"]
