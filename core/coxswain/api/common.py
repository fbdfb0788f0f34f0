"""What all kinds are made of: the model base, bounded strings and integers, references, conditions.

pydantic is used here at the API's edge only. A field's docstring becomes its description in the CRD and in the reference page:
what it is, its unit, what empty means. Its Effect says when an edit takes effect.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from coxswain.uris import BUCKET

MAX_INTEGER = 2**53 - 1  # what JSON readers in every language keep exactly
MAX_ITEMS = 64  # sources, phases, rules; more would exceed the API server's cost estimate


class Model(BaseModel):
    """Base of every API object: camelCase, no unknown fields, no conversions, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=False,
    )


def list_map(key: str, maximum: int = MAX_ITEMS) -> Any:
    """Annotates a list whose items have unique values of `key`: server-side apply merges by it."""
    extra: Any = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Field(max_length=maximum, json_schema_extra=extra)


ATOMIC: Any = {"x-kubernetes-list-type": "atomic"}

NAME_LENGTH = 253  # characters of an object's name
LABEL_LENGTH = 63  # of a namespace's, or a volume's
_WORD = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_WORD}(\.{_WORD})*"
KEY_NAME = "[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"  # of a label, and its value: LABEL_LENGTH at most
LABEL = rf"^{_WORD}$"
SUBDOMAIN = rf"^{_DOMAIN}$"
_SUBDOMAIN_OR_NONE = rf"^({_DOMAIN})?$"
_LABEL_KEY_OR_NONE = rf"^(({_DOMAIN}/)?{KEY_NAME})?$"
# Claims as Kubernetes names them; no path holds a NUL.
_URI = rf"^(s3://{BUCKET}(/[^\x00]*)?|file:///[^\x00]*|pvc://{_DOMAIN}(/[^\x00]*)?)$"
_URL = r"^(https?://[!-~]+)?$"
_DECIMAL = r"^[0-9]{1,15}(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?$"
_PREFIXED = rf"^{_DOMAIN}/{KEY_NAME}$"
DATE_TIME = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
FOLDER = r"^(/.*)?$"
PYTHON_CLASS = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
# What the patterns mean, for people.
PATTERNS = {
    PYTHON_CLASS: "MODULE:CLASS, such as my_package.gpt:GPT",
    _PREFIXED: "PREFIX/NAME, such as example.org/training",
    LABEL: "lower-case letters, digits and -",
    SUBDOMAIN: "lower-case letters, digits, - and .",
    _SUBDOMAIN_OR_NONE: "lower-case letters, digits, - and .",
    _LABEL_KEY_OR_NONE: "NAME or PREFIX/NAME, such as topology.kubernetes.io/zone",
    _URI: "s3://bucket/path, file:///path or pvc://claim/path; a bucket has letters, digits and . _ : -, "
    "a claim lower-case letters, digits, - and ., a path no NUL",
    _URL: "http:// or https:// and a host, in ASCII without spaces",
    FOLDER: "an absolute path",
    DATE_TIME: "a time such as 2026-01-31T12:00:00Z",
    _DECIMAL: 'a decimal string such as "0.1" or "3e-4"',
}

Name = Annotated[str, Field(min_length=1, max_length=LABEL_LENGTH, pattern=LABEL)]
ObjectName = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=SUBDOMAIN)]
ObjectNameOrNone = Annotated[str, Field(max_length=NAME_LENGTH, pattern=_SUBDOMAIN_OR_NONE)]
LabelKeyOrNone = Annotated[str, Field(max_length=NAME_LENGTH + 1 + LABEL_LENGTH, pattern=_LABEL_KEY_OR_NONE)]
ControllerName = Annotated[str, Field(max_length=63, pattern=_PREFIXED)]
Text = Annotated[str, Field(max_length=1024)]
LongText = Annotated[str, Field(max_length=32768)]
Uri = Annotated[str, Field(max_length=1024, pattern=_URI)]
Url = Annotated[str, Field(max_length=1024, pattern=_URL)]
Image = Annotated[str, Field(max_length=512)]
Decimal = Annotated[str, Field(max_length=32, pattern=_DECIMAL)]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=1, le=100_000)]
TrainerCount = Annotated[int, Field(ge=1, le=10_000)]  # a pass looks at each, and other jobs wait for it
Degree = Annotated[int, Field(ge=1, le=1024)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
Weight = Annotated[int, Field(ge=0, le=1_000_000)]


class ObjectReference(Model):
    """Names another object in the same namespace."""

    name: ObjectName
    """Name of the object. It may be created later: until then a condition names it."""


class Endpoint(Model):
    """An S3 server."""

    url: Url = ""
    """Address of the server, http:// or https://. Empty: the cloud provider's own."""
    region: Annotated[str, Field(max_length=63)] = ""
    """Region that requests are signed for. Empty: the provider's default."""
    addressing_style: Literal["Path", "Virtual"] = "Path"
    """Where requests name the bucket: in the path (http://server/bucket/key), or in the host (http://bucket.server/key), as some
    providers demand. `url` is the server's, without the bucket."""
    secret_ref: ObjectReference | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and with ca.crt where a private authority has signed the server's
    certificate. Empty: the pod's own identity (boto3's chain)."""


class Condition(Model):
    """One condition, as in Kubernetes' metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """One CamelCase word for programs."""
    message: LongText = ""
    """One sentence for people."""
    last_transition_time: Time
    """When `status` last changed, RFC 3339."""
    observed_generation: Whole | None = None
    """metadata.generation that the condition was computed from."""


Conditions = Annotated[list[Condition], list_map("type", 32)]
