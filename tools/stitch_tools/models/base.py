"""The base of every stored or sent fact."""

import hashlib
import json
import threading
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_BUILD = threading.RLock()


class Fact(BaseModel):
    """A frozen record. Unknown fields are refused; attribute docstrings become JSON schema text."""

    # Validators are built at the first use, and docstrings read where a schema is asked for: both for each of
    # some ninety facts would be a third of a second of CPU in every process, which uses a few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def model_rebuild(cls, **given: Any) -> bool | None:
        """Build the validator if there is none yet; of several threads one does."""
        with _BUILD:
            return super().model_rebuild(**given)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema with what the docstrings of its attributes say."""
        from stitch_tools.models.docstrings import attribute_docstrings

        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in attribute_docstrings(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema

    def canonical_json(self) -> bytes:
        """The record as UTF-8 JSON with sorted keys and no spaces: equal records give equal bytes."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json_bytes(cls, data: bytes) -> Self:
        """The record read back from `canonical_json` (or any JSON of the same schema).

        Raises:
            pydantic.ValidationError: the bytes do not fit the schema.
        """
        return cls.model_validate_json(data)


def without_field(data: object, *names: str) -> object:
    """What a record is read from, less fields of older versions: what they stored stays readable."""
    if not isinstance(data, dict):
        return data
    fields = cast(dict[str, object], data)
    return {key: value for key, value in fields.items() if key not in names}


def canonical_json(data: object) -> bytes:
    """Plain data as UTF-8 JSON with sorted keys and no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def sha256_hex(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256 of `data`: the only content hash that we use."""
    return hashlib.sha256(data).hexdigest()
