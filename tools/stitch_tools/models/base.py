"""The base of every stored or sent fact."""

import hashlib
import json
from typing import Self

from pydantic import BaseModel, ConfigDict


class Fact(BaseModel):
    """A frozen record. Unknown fields are refused; attribute docstrings become JSON schema text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


def canonical_json(data: object) -> bytes:
    """Plain data as UTF-8 JSON with sorted keys and no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def sha256_hex(data: bytes) -> str:
    """Lower-case hexadecimal SHA-256 of `data`: the only content hash that we use."""
    return hashlib.sha256(data).hexdigest()
