"""What a server-side apply leaves in a status: fields that another manager owns too. Pure."""

from __future__ import annotations

from coxswain_operator.views import Manifest


def leftovers(applied: Manifest, stored: Manifest) -> Manifest:
    """A merge patch that removes what is stored and was not applied; empty: nothing is left over.

    A backup that was restored, or a person's edit, makes another manager an owner of our fields, and apply removes only
    what it alone owns. Lists stay: the server replaces ours, and conditions are shared with other controllers.
    """
    gone = {name: None for name in stored if name not in applied}
    members = ((name, value, stored.get(name)) for name, value in applied.items())
    inner = {n: leftovers(a, s) for n, a, s in members if isinstance(a, dict) and isinstance(s, dict)}
    return gone | {name: patch for name, patch in inner.items() if patch}
