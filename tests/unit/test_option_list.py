"""The handwritten lists of queue and stream options equal the models.

The command line, OpenAPI, the dashboard's form and the reference are generated from the models.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from penstock.client.stream_types import StreamChanges
from penstock.client.types import Options
from penstock.core.model import QueueOptions
from penstock.log.model import StreamOptions

SHAPES = Path(__file__).parents[2] / "clients" / "js" / "shapes.d.ts"
# Fields that the HTTP API accepts in addition to the options of the model.
HTTP_ONLY = {"visibility_ms": "number", "secret": "string | null"}
SCRIPT_NAMES = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}


@pytest.mark.parametrize(("model", "types"), [(QueueOptions, Options), (StreamOptions, StreamChanges)])
def test_the_sdk_types_every_option_as_the_model_does(model: type[msgspec.Struct], types: Any) -> None:
    wanted = {field.name: plain(field.type) for field in msgspec.structs.fields(model)}
    assert {name: plain(kind) for name, kind in get_type_hints(types).items()} == wanted


@pytest.mark.parametrize(("model", "more"), [(QueueOptions, HTTP_ONLY), (StreamOptions, {})])
def test_the_javascript_client_types_every_option_as_the_model_does(
    model: type[msgspec.Struct], more: dict[str, str]
) -> None:
    wanted = {field.name: script(plain(field.type)) for field in msgspec.structs.fields(model)} | more
    body = re.search(rf"^export interface {model.__name__} {{\n(.*?)^}}", SHAPES.read_text("utf-8"), re.M | re.S)
    assert body is not None
    assert dict(re.findall(r"^  (\w+)\?: (.+)$", body[1], re.M)) == wanted


def test_every_option_has_a_description() -> None:
    properties = msgspec.json.schema(QueueOptions)["$defs"]["QueueOptions"]["properties"]
    assert [name for name, schema in properties.items() if not schema.get("description")] == []


def plain(kind: Any) -> Any:
    """Return a type without its limits and descriptions."""
    if get_origin(kind) is Annotated:
        return plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(plain(each) for each in get_args(kind))]  # noqa: UP007
    return kind


def script(kind: Any) -> str:
    """Return a type in TypeScript notation."""
    if get_origin(kind) is Union:
        return " | ".join(script(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(f"'{each}'" for each in get_args(kind))
    return SCRIPT_NAMES[kind]
