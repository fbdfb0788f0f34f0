"""YAML as Kubernetes reads it: the same words are numbers, truth values and strings as for its Go library.

That library (sigs.k8s.io/yaml over go-yaml 2) reads YAML 1.1 without dates, without numbers of base 60 (`1:30`), and with a few
words that PyYAML takes for strings.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_DEPTH = 100  # of lists and mappings within each other
_TAG = "tag:yaml.org,2002:"
_TRUTHS = {"y": True, "n": False}
# The first that matches counts. An octal number that is none, such as 08, is a number with a fraction, as in Go.
_WORDS = {
    "bool": ("yYnNtTfFoO", r"y|Y|n|N|(?:yes|no|on|off|true|false|Yes|No|On|Off|True|False|YES|NO|ON|OFF|TRUE|FALSE)"),
    "int": ("-+0123456789", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)"),
    "float": (
        "-+0123456789.",
        r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
    "null": (["~", "n", "N", ""], r"~|null|Null|NULL|"),
    "merge": ("<", "<<"),
}


class YamlLoader(yaml.SafeLoader):
    """Refuses keys that appear twice, and more than MAX_DEPTH lists and mappings within each other."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """PyYAML's time for each word grows with its depth."""
        if self._depth == MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "lists and mappings are nested too deeply", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key_node.value in seen:
                problem = f"key {key_node.value!r} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


YamlLoader.bool_values = {**yaml.SafeLoader.bool_values, **_TRUTHS}
YamlLoader.yaml_implicit_resolvers = {}
for _kind, (_first, _words) in _WORDS.items():
    YamlLoader.add_implicit_resolver(_TAG + _kind, re.compile(f"^(?:{_words})$"), list(_first))
