"""The spool by its former place, for formats."""

from __future__ import annotations

from coxswain_link.spool import Data as Data
from coxswain_link.spool import Spool as Spool
