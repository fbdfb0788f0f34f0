"""Words and names that must not come back, each with the one to use instead. `python -m tests.words` lists every place.

    python -m tests.words [--counts] [PATH...]

Scans the tracked Python, Markdown and YAML files. Three tables: WORDS in any text and within names, NAMES as
whole identifiers, PATHS as files and modules. Exit code 1 when something is found. A passage between
`<!-- old words -->` and its end is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("*.py", "*.md", "*.yaml", "*.yml")
# This table itself, its test, and what is generated from files that are scanned.
SKIPPED = ("tests/words.py", "tests/unit/test_words.py", "crds/", "charts/coxswain/templates/")

# Not letters on either side: `_` parts words, so that names of tests and functions are read as words too.
WORDS = {
    "told": "report, send or show; name the sender",
    "tell": "say, report, send or name",
    "tells": "says, reports, sends or names",
    "telling": "saying, reporting or sending",
    "anew": "again, or from scratch",
    "whoever": "name the process",
    "whomever": "name the process",
    "nobody": "no process, no worker, nothing",
    "somebody": "a process, another, someone only for a person",
    "at hand": "available, current, given",
    "for its sake": "because of it",
    "for their sake": "because of them",
    "lives": "runs, is running, is stored, lies",
    "dies": "exits, is killed, fails",
    "die": "exit, fail",
    "died": "exited, was killed, failed",
    "dying": "exiting, failing",
    "farewell": "drain",
    "farewells": "drain",
    "goodbye": "end acknowledgement",
    "happening": "event",
    "happenings": "events",
    "mold": "fork server",
    "molds": "fork servers",
    "deed": "call, action",
    "deeds": "actions",
    "shelf": "step cache",
    "bell": "notifier",
    "glue": "kopf watches, or adapter",
    "ailment": "problem",
    "ailing": "failing, unhealthy",
    "surroundings": "environment",
    "homeless": "unschedulable",
    "belongings": "children",
    "stranded": "left on a lost node",
    "furnished": "provisioned",
    "undisturbed": "baseline",
    "unled": "autonomous",
    "amiss": "wrong",
}
# A subject that is a process is named; people may be "who".
WHO = "name the subject; `who` only behind people, person, user, reader, someone or anyone"
_PEOPLE = r"(?:people|persons?|users?|readers?|someone|anyone|everyone|author|maintainers?|somebody)"

# Whole identifiers, as written; not inside longer ones.
NAMES = {
    # operator
    "do_all": "execute",
    "Crew": "SlowStartBatch",
    "Deed": "Call",
    "alternately": "interleave",
    "Following": "ReportPoller",
    "KeyedQueue": "WorkQueue",
    "Book": "EventAggregator",
    "News": "CacheEvent",
    "note_gone": "apply_delete",
    "Happening": "Event",
    "Pairs": "Conditions",
    "Pulse": "HealthStatus",
    "Surroundings": "ContainerEnv",
    "_let_go": "_release_orphans",
    "_carry_out": "_execute",
    # reconcile
    "Situation": "Context",
    "Ending": "Termination",
    "loss_of": "detect_failure",
    "WakeAt": "RequeueAt",
    "Wake": "RequeueAt",
    # coordinator
    "Bell": "Notifier",
    "Journal": "JsonlWriter",
    "SaveBook": "PendingCheckpoints",
    "StepBook": "StepTracker",
    "EventBook": "EventLog",
    "Worlds": "WorldManager",
    "replace_world": "next_generation",
    "taken_up": "adopted",
    "_take_up": "_adopt",
    "learn_end": "adopt_end",
    "count_goodbye": "ack_end",
    "_see_off": "_await_workers",
    "_tidy": "_collect_garbage",
    "Durable": "StoreExecutor",
    # train
    "Mold": "ForkServer",
    "Wanted": "ForkRequest",
    "Born": "Forked",
    "_become": "_init_child",
    "_bury": "_reap",
    "obeyed": "wait_joined",
    "last_words": "read_fault",
    "Orders": "AssignmentChannel",
    "Tickets": "DirectiveClient",
    "Ticket": "StepDirective, or flight.Ticket with its module",
    "Escape": "WorldAborter",
    "Zero": "Zero1Optimizer",
    "Tally": "RankStats",
    "Agreement": "GlobalStats",
    "Walk": "TaskRunner",
    "Matrix": "Linear",
    "Attend": "AttentionFn",
    "_OBEY": "JOIN_TIMEOUT",
    "_IMPATIENCE": "POLL_DEADLINE",
    "_starvation": "_oom_fault",
    "_dismiss": "_stop_worker",
    # link
    "Letters": "MessageLog",
    "Garbled": "CorruptRead",
    "Damaged": "CorruptObject",
    "NoBucket": "BucketNotFound",
    # data
    "Shelf": "StepCache",
    "Library": "OpenSources",
    "LeastRecent": "LRUCache",
    # core
    "Ground": "ReplicaLoads",
    "Poured": "Packing",
    "pour": "fill_bins",
    "neediest": "Deficits.largest",
    "Beat": "Heartbeat",
    # cli
    "Teller": "Output",
    "ForPeople": "TextOutput",
}

# Files and modules that moved, without their ending; a folder stands for all in it.
PATHS = {
    "operator/coxswain_operator/steady": "operator/coxswain_operator/clock",
    "operator/coxswain_operator/deeds": "operator/coxswain_operator/executor",
    "operator/coxswain_operator/acting": "operator/coxswain_operator/slow_start",
    "operator/coxswain_operator/alone": "operator/coxswain_operator/single_job",
    "operator/coxswain_operator/following": "operator/coxswain_operator/report_poller",
    "operator/coxswain_operator/glue": "operator/coxswain_operator/kopf_watches",
    "operator/coxswain_operator/observe": "operator/coxswain_operator/pod_decoding",
    "operator/coxswain_operator/kubernetes/keyed": "operator/coxswain_operator/workqueue",
    "operator/coxswain_operator/kubernetes/pace": "operator/coxswain_operator/kubernetes/limiter",
    "operator/coxswain_operator/kubernetes/series": "operator/coxswain_operator/kubernetes/event_aggregator",
    "operator/coxswain_operator/kubernetes/tokens": "operator/coxswain_operator/kubernetes/read_cache",
    "operator/coxswain_operator/kubernetes/readers": "operator/coxswain_operator/kubernetes/decoding",
    "operator/coxswain_operator/local/surroundings": "operator/coxswain_operator/local/container_env",
    "operator/coxswain_operator/reconcile/situation": "operator/coxswain_operator/reconcile/context",
    "operator/coxswain_operator/reconcile/step": "operator/coxswain_operator/reconcile/result",
    "operator/coxswain_operator/reconcile/losses": "operator/coxswain_operator/reconcile/member_failures",
    "operator/coxswain_operator/reconcile/failure": "operator/coxswain_operator/reconcile/failure_policy",
    "operator/coxswain_operator/reconcile/belongings": "operator/coxswain_operator/reconcile/child_diff",
    "operator/coxswain_operator/reconcile/stranded": "operator/coxswain_operator/reconcile/force_delete",
    "operator/coxswain_operator/reconcile/waiting": "operator/coxswain_operator/reconcile/pending",
    "operator/coxswain_operator/reconcile/finish": "operator/coxswain_operator/reconcile/completion",
    "runtime/coxswain_coordinator/bell": "runtime/coxswain_coordinator/state/notifier",
    "runtime/coxswain_coordinator/journal": "runtime/coxswain_coordinator/state/jsonl",
    "runtime/coxswain_coordinator/saves": "runtime/coxswain_coordinator/checkpoint/pending",
    "runtime/coxswain_coordinator/run": "runtime/coxswain_coordinator/state/job_state",
    "runtime/coxswain_coordinator/service": "runtime/coxswain_coordinator/api/handlers",
    "runtime/coxswain_coordinator/worlds": "runtime/coxswain_coordinator/world/manager",
    "runtime/coxswain_coordinator/durable": "runtime/coxswain_coordinator/store_executor",
    "runtime/coxswain_coordinator/ending": "runtime/coxswain_coordinator/termination",
    "runtime/coxswain_coordinator/stalls": "runtime/coxswain_coordinator/world/stalls",
    "runtime/coxswain_coordinator/catalog": "runtime/coxswain_coordinator/index/progress",
    "runtime/coxswain_coordinator/page": "runtime/coxswain_coordinator/api/status_page",
    "runtime/coxswain_train/mold": "runtime/coxswain_train/agent/forkserver",
    "runtime/coxswain_train/crew": "runtime/coxswain_train/agent/processes",
    "runtime/coxswain_train/memory": "runtime/coxswain_train/cgroup",
    "runtime/coxswain_train/orders": "runtime/coxswain_train/worker/assignments",
    "runtime/coxswain_train/lives": "runtime/coxswain_train/worker/worker",
    "runtime/coxswain_train/meeting": "runtime/coxswain_train/worker/rendezvous",
    "runtime/coxswain_train/receiving": "runtime/coxswain_train/worker/prefetch",
    "runtime/coxswain_train/tickets": "runtime/coxswain_train/worker/directives",
    "runtime/coxswain_train/world": "runtime/coxswain_train/parallel/process_groups",
    "runtime/coxswain_train/zero": "runtime/coxswain_train/parallel/zero1",
    "runtime/coxswain_train/ring": "runtime/coxswain_train/model/ring",
    "runtime/coxswain_train/init": "runtime/coxswain_train/model/init_weights",
    "runtime/coxswain_train/weights": "runtime/coxswain_train/checkpoint/pretrained",
    "runtime/coxswain_link/http": "runtime/coxswain_link/http_client",
    "runtime/coxswain_link/serve": "runtime/coxswain_link/http_server",
    "runtime/coxswain_link/steparrays": "runtime/coxswain_link/step_buffer",
    "runtime/coxswain_link/plans": "runtime/coxswain_link/plan_feed",
    "runtime/coxswain_data/shelf": "runtime/coxswain_data/step_cache",
    "runtime/coxswain_data/library": "runtime/coxswain_data/open_sources",
    "runtime/coxswain_data/catalog": "runtime/coxswain_data/block_map",
    "runtime/coxswain_data/fetching": "runtime/coxswain_data/fetcher",
    "core/coxswain/lean": "core/coxswain/import_guard",
    "core/coxswain/plan/gang": "core/coxswain/plan/rings",
    "core/coxswain/plan/ground": "core/coxswain/plan/loads",
    "core/coxswain/plan/fill": "core/coxswain/plan/packing",
    "core/coxswain/plan/balances": "core/coxswain/plan/planners",
    "core/coxswain/api/judge": "core/coxswain/api/cel_rules",
    "core/coxswain/api/faults": "core/coxswain/api/field_errors",
    "cli/coxswain_cli/telling": "cli/coxswain_cli/output",
    "cli/coxswain_cli/ending": "cli/coxswain_cli/summary",
    "cli/coxswain_cli/machine": "cli/coxswain_cli/preflight",
    "cli/coxswain_cli/reporting/choose": "cli/coxswain_cli/reporting/step_selection",
    "cli/coxswain_cli/reporting/figures": "cli/coxswain_cli/reporting/formatting",
    "cli/coxswain_cli/reporting/facts": "cli/coxswain_cli/reporting/json_report",
    "cli/coxswain_cli/reporting/picture": "cli/coxswain_cli/reporting/timeline",
    "cli/coxswain_cli/reporting/record": "cli/coxswain_cli/reporting/model",
    "tests/unit/reconcile_world": "tests/unit/fake_cluster",
    "tests/unit/crash_game": "tests/unit/crash_simulation",
    "tests/unit/crash_mail": "tests/unit/crash_outbox",
    "tests/integration/life": "tests/integration/lifecycle",
    "e2e/furnished": "e2e/provision",
    "e2e/undisturbed": "e2e/baseline",
    "e2e/quoted": "e2e/doc_commands",
    "e2e/cluster/wires": "e2e/cluster/networking",
    "bench/scale/plane": "bench/scale/control_plane",
}

# Pointers to documents that are not here.
OUTSIDE = re.compile(r"(?<!docs/)\bdesign 0\d\b|\breference [a-z-]+ \d|\bfindings-[a-z]+\b|\bdesign/0\d")

# Uses that a library or a published name asks for: (path, word), with the reason.
ALLOWED = {
    ("runtime/coxswain_data/formats/ranges.py", "tell"): "the method of a Python file",
    ("runtime/coxswain_link/flight.py", "Ticket"): "Arrow Flight's",
    ("runtime/coxswain_link/store_faults.py", "NoBucket"): "the reason that is stored and sent",
    ("charts/coxswain/files/alerts.yaml", "nobody"): "the name of an alert, which people silence by it",
    ("docs/operations.md", "nobody"): "the paragraph of that alert",
}


# Words without which a rule finds nothing.
_FIRST_WORDS = {word.partition(" ")[0] for word in WORDS}
_WHO = {"who", "whom"}
_OUTSIDE = {"design", "reference", "findings"}
_ENDS_OF_PATHS = {old.partition("/")[2] for old in PATHS}

Rule = Callable[[str], Iterator[tuple[str, str]]]


@dataclass(frozen=True, order=True)
class Found:
    """A word that must not be there."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.instead}"


def scan(path: str, text: str) -> Iterator[Found]:
    """Every forbidden word of one file, by line."""
    text = without_old_words(text)
    rules = _rules_for(text)
    for number, line in enumerate(text.splitlines() if rules else (), 1):
        for word, instead in (found for rule in rules for found in rule(line)):
            if (path, word) not in ALLOWED:
                yield Found(path, number, word, instead)
    yield from _of_path(path)


def _rules_for(text: str) -> list[Rule]:
    """The rules that may find something. Each is slow; that a file has none of its words is known quickly."""
    names = set(re.findall(r"\w+", text))
    words = {part for name in names for part in re.findall("[a-z]+", name.lower())}
    paths = text.replace(".", "/")
    found: list[Rule] = [_forbidden] * (not words.isdisjoint(_FIRST_WORDS)) + [_people] * (not words.isdisjoint(_WHO))
    found += [_renamed] * (not names.isdisjoint(NAMES)) + [_moved] * any(old in paths for old in _ENDS_OF_PATHS)
    return found + [_outside] * (not words.isdisjoint(_OUTSIDE))


def without_old_words(text: str) -> str:
    """The text with every line of a passage that shows old words emptied, so that line numbers stay."""
    passages = re.compile(r"<!-- old words -->.*?<!-- end of old words -->", re.DOTALL)
    return passages.sub(lambda match: "\n" * match[0].count("\n"), text)


def _forbidden(line: str) -> Iterator[tuple[str, str]]:
    for match in _words().finditer(line):
        word = match[0].lower().replace("_", " ")
        yield word, WORDS[word]


def _people(line: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"(?<![A-Za-z])whom?(?![A-Za-z])", line, re.IGNORECASE):
        if not re.search(rf"\b{_PEOPLE}[,]? $", line[: match.start()], re.IGNORECASE):
            yield match[0].lower(), WHO


def _renamed(line: str) -> Iterator[tuple[str, str]]:
    for match in _names().finditer(line):
        yield match[0], NAMES[match[0]]


def _moved(line: str) -> Iterator[tuple[str, str]]:
    for match in _modules().finditer(line):
        old = _as_path(match[0])
        yield old, PATHS[old]


def _outside(line: str) -> Iterator[tuple[str, str]]:
    for match in OUTSIDE.finditer(line):
        yield match[0], "write what it says; point only to documents of this repository"


def _of_path(path: str) -> Iterator[Found]:
    stem = path.removesuffix(".py")
    if stem in PATHS:
        yield Found(path, 0, stem, PATHS[stem])
    for match in _words().finditer(Path(path).stem):
        yield Found(path, 0, match[0], WORDS[match[0].lower().replace("_", " ")])


@cache
def _words() -> re.Pattern[str]:
    words = "|".join(word.replace(" ", "[ _]") for word in sorted(WORDS, key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)


@cache
def _names() -> re.Pattern[str]:
    """A name that is also a word of English counts only where it stands as code."""
    words = [name for name in NAMES if re.fullmatch(r"[A-Z][a-z]+", name)]
    others = [name for name in NAMES if name not in words]
    whole = rf"(?<![A-Za-z0-9_.])(?:{'|'.join(sorted(others, key=len, reverse=True))})(?![A-Za-z0-9_])"
    plain = "|".join(words)
    before = rf"(?:(?<=class )|(?<=import )|(?<=-> )|(?<=\w: )|(?<=\[)|(?<=`)|(?<=\| ))(?:{plain})(?![A-Za-z0-9_])"
    after = rf"(?<![A-Za-z0-9_.])(?:{plain})(?=[(\[`])"
    return re.compile(f"{whole}|{before}|{after}")


@cache
def _modules() -> re.Pattern[str]:
    """As a path with its root, or as a module within it; not the beginning of a longer one."""
    found = []
    for old in sorted(PATHS, key=len, reverse=True):
        root, _, module = old.partition("/")
        dotted = (module if root in ("operator", "runtime", "core", "cli") else old).replace("/", r"\.")
        found += [rf"{re.escape(old)}(?=\.py|[`\s)]|$)", rf"(?<![\w./]){dotted}(?![\w/])"]
    return re.compile("|".join(found))


def _as_path(text: str) -> str:
    path = text.replace(".", "/")
    return next(old for old in PATHS if old in (path, text) or old.partition("/")[2] == path)


def in_checkout(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Files of the checkout below these paths, or of these patterns, whether committed or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    return sorted(path for path in set(listed) if (root / path).is_file())


def tracked(root: Path = ROOT, below: Iterable[str] = ()) -> list[str]:
    """Files of the checkout to scan."""
    endings = tuple(pattern.removeprefix("*") for pattern in PATTERNS)
    return [p for p in in_checkout(below or PATTERNS, root) if p.endswith(endings) and not p.startswith(SKIPPED)]


def found_in(paths: Iterable[str], root: Path = ROOT) -> list[Found]:
    return sorted(found for path in paths for found in scan(path, (root / path).read_text()))


def folder_of(path: str) -> str:
    """Where counts are summed: the package, or the top folder."""
    parts = path.split("/")[:-1]
    return "/".join(parts[:2]) or "."


def main() -> None:
    arguments = sys.argv[1:]
    counts = "--counts" in arguments
    found = found_in(tracked(below=[a for a in arguments if a != "--counts"]))
    if counts:
        for folder, number in sorted(Counter(folder_of(f.path) for f in found).items()):
            print(f"{number:6} {folder}")
    else:
        print("\n".join(map(str, found)))
    print(f"{len(found)} words that must not come back" if found else "no words that must not come back")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
