"""What all kinds are made of: the model base, bounded strings and integers, references, conditions.

pydantic is used here at the API's edge only. A field's docstring becomes its description in the CRD and in the reference page:
what it is, its unit, what empty means, and when it may change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

MAX_INTEGER = 2**53 - 1  # what JSON readers in every language keep exactly
MAX_ITEMS = 64  # sources, phases, rules: enough for people, small enough for the API server's cost estimate

T = TypeVar("T")


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


def unique_by(key: str) -> Callable[[list[T]], list[T]]:
    """A check that no two items share `key`: what the API server does for list-maps."""

    def check(items: list[T]) -> list[T]:
        seen: set[Hashable] = set()
        for item in items:
            value = getattr(item, key)
            if value in seen:
                raise PydanticCustomError("duplicate", "Duplicate value: {value}", {"value": value, "key": key})
            seen.add(value)
        return items

    return check


def list_map(key: str, maximum: int = MAX_ITEMS) -> tuple[Any, Any]:
    """Annotations of a list whose items are known by `key`, so that server-side apply merges them."""
    extra: Any = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return AfterValidator(unique_by(key)), Field(max_length=maximum, json_schema_extra=extra)


ATOMIC: Any = {"x-kubernetes-list-type": "atomic"}

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")]
Word = Annotated[str, Field(min_length=1, max_length=63)]
Text = Annotated[str, Field(max_length=1024)]
LongText = Annotated[str, Field(max_length=32768)]
Uri = Annotated[str, Field(max_length=1024, pattern=r"^(s3://|file:///|pvc://)")]
Url = Annotated[str, Field(max_length=1024, pattern=r"^(https?://.+)?$")]
Image = Annotated[str, Field(max_length=512)]
Decimal = Annotated[str, Field(max_length=32, pattern=r"^[0-9]{1,15}(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?$")]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=1, le=100_000)]
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
    secret_ref: ObjectReference | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Empty: the pod's own identity (boto3's chain)."""


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


Conditions = Annotated[list[Condition], *list_map("type", 32)]
