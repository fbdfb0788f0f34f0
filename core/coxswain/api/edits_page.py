"""docs/edits.md: for each field of every kind, when an edit takes effect."""

from __future__ import annotations

from collections.abc import Iterator

from coxswain.api.effects import Effect, effects
from coxswain.api.kinds import KINDS, Kind
from coxswain.api.reference import GENERATED, page_name

_MEANING = {
    Effect.AT_ONCE: "with the operator's next pass",
    Effect.UNCOMMITTED: "from the first multiple of eight among the steps without a plan on: at least eight steps or 30 seconds "
    "ahead, whichever is longer (under `stragglers.action: Rebalance` and above at most ten steps); event `MixChanged` names "
    "that step. What is planned stays as it is, whatever restarts",
    Effect.NEXT_ATTEMPT: "all pods of an attempt are made of what it began with, also those that are replaced. Until the next "
    "attempt `Validated` has reason `EditPending`, and names object and field; so does event `EditPending`",
    Effect.SUSPENDED: "likewise. The API server refuses the edit in a job whose `suspend` is false",
    Effect.NEVER: "the API server refuses the edit and names the way out. An object that is deleted and created again with "
    "another value is as an edit that waits for the next attempt; there a stream, model or `optimizer.kind` that differs "
    "from the checkpoint's is refused",
}
_TEXT = """# Edits: when a change takes effect

What a step contains never depends on which pod was restarted. So each field has one moment at which
a running job takes an edit over:

{meanings}

The next attempt begins when the whole job restarts: by a rule of its own, with another number of
trainers, after a raised stop that was reached, at a retry. On this page it also begins with the end
of a suspension, after the loss of all pods at once, and with every repetition of `cox run`. To have
an edit in effect now, set `suspend: true`, wait for STATE Suspended, and set `suspend: false`.

- **Images.** The images of an attempt are in `status.pinned.images`. An operator that is upgraded in
  mid-attempt, and has other images in its settings, says so in `Validated` and uses them at the
  next attempt.
- **A spec that does not fit any more**, such as a policy with too few tokens for the longest
  sequence: what runs goes on, and lost pods are replaced as they were. `Validated` is False and
  says why. The next attempt waits, without pods, until the spec is restored or corrected; nothing
  is lost.
- **What an attempt began with** is in ConfigMap `NAME-attempt-HASH` (`status.pinned.hash`), which
  no pod mounts and nothing changes. If it is deleted and a spec has changed since, no pod is
  replaced: `ConfigurationLost`, with the way out.
- **Keys in Secrets** are no fields: pods see new ones within two minutes.
- **`stop`** may be raised in mid-attempt. The attempt ends at its own stop, saves, and the next one
  goes on from there, so all ranks have one learning-rate schedule.

"""


def edits_page() -> str:
    rows = "\n".join(f"| {effect.value} | {_MEANING[effect]} |" for effect in Effect)
    meanings = f"| an edit takes effect | |\n|---|---|\n{rows}"
    head, _, rest = _TEXT.partition("\n\n")
    return "\n".join([f"{head}\n\n{GENERATED}\n{rest.format(meanings=meanings)}", *map(_table, KINDS)])


def _table(kind: Kind) -> str:
    lines = [f"| `{path}` | {effect.value} |" for path, effect in leaves(kind)]
    head = f"## {kind.name}\n\n[Its fields](reference/{page_name(kind)})\n\n| field of `spec` | an edit takes effect |\n|---|---|"
    return "\n".join([head, *lines, ""])


def leaves(kind: Kind) -> Iterator[tuple[str, Effect]]:
    """Every field that has no fields of its own. Raises ValueError for one that says no effect."""
    found = dict(effects(kind.spec, kind.effect))
    for path, effect in found.items():
        if any(other.startswith((f"{path}.", f"{path}[]")) for other in found):
            continue
        if effect is None:
            raise ValueError(f"{kind.name} spec.{path} says no effect of an edit: annotate the field with an Effect")
        yield path, effect
