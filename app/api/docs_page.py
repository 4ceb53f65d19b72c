"""/docs: the description as a page for people. Rendered here, from what /openapi.json says; no script, nothing foreign.

Pure; made once, at the first look. Every text goes through `escape`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from app.api.docs_style import STYLE
from app.api.openapi import TAGS
from app.api.problem_documents import MEDIA_TYPE

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Mapping[str, str] = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""What goes with the page: nothing but its own style is let in."""
_REFERENCE = "#/components/schemas/"
Schema = Mapping[str, Any]


def docs_page(description: Schema, name: str) -> str:
    """The page, for the service of that name."""
    title = f"The HTTP side of {escape(name)}"
    version = escape(str(description["info"]["version"]))
    groups = _groups(description)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            f"<header><h1>{title}</h1>",
            f'<p class="soft">millrace {version}. Every answer carries <code>as_of</code>, <code>name</code> and ',
            "<code>version</code>; what is not known yet is left out. Errors are problem documents with a ",
            '<code>fix</code>. For programs: <a href="/openapi.json">openapi.json</a>.</p></header>',
            *_navigation(groups),
            "<main>",
            *(line for tag, operations in groups.items() for line in _section(tag, operations, description)),
            '<h2 id="shapes">Shapes</h2><p class="soft">What answers and bodies are made of.</p>',
            *(line for shape, schema in _shapes(description) for line in _shape(shape, schema)),
            "</main></body></html>",
        )
    )


def _shapes(description: Schema) -> list[tuple[str, Schema]]:
    return sorted(description["components"]["schemas"].items())


_Operation = tuple[str, str, Schema]
"""Method, path, and what is said of both."""


def _groups(description: Schema) -> dict[str, list[_Operation]]:
    """The operations by tag; a tag that nobody has described comes last."""
    groups: dict[str, list[_Operation]] = {tag: [] for tag in TAGS}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            tag = next(iter(operation.get("tags", [])), "Others")
            groups.setdefault(tag, []).append((method, path, operation))
    return {tag: operations for tag, operations in groups.items() if operations}


def _navigation(groups: Mapping[str, list[_Operation]]) -> Iterator[str]:
    yield '<nav aria-label="Routes">'
    for tag, operations in groups.items():
        yield f"<strong>{escape(tag)}</strong><ul>"
        for method, path, operation in operations:
            summary = _marked(operation["summary"])
            link = f'<a href="#{_anchor(method, path)}">{_call(method, path)}</a>'
            yield f'<li>{link} <span class="soft">{summary}</span></li>'
        yield "</ul>"
    yield "</nav>"


def _anchor(method: str, path: str) -> str:
    return re.sub(r"\W+", "-", f"{method}{path}").strip("-") or method


def _call(method: str, path: str) -> str:
    return f'<code><span class="method {escape(method)}">{escape(method.upper())}</span> {escape(path)}</code>'


def _section(tag: str, operations: list[_Operation], description: Schema) -> Iterator[str]:
    yield f'<section aria-label="{escape(tag)}"><h2>{escape(tag)}</h2><p class="soft">{escape(TAGS.get(tag, ""))}</p>'
    for operation in operations:
        yield from _article(*operation, description)
    yield "</section>"


def _article(method: str, path: str, operation: Schema, description: Schema) -> Iterator[str]:
    yield f'<article id="{_anchor(method, path)}"><h3>{_call(method, path)}</h3><p>{_marked(operation["summary"])}.</p>'
    if "description" in operation:
        yield f"<p>{_marked(operation['description'])}</p>"
    if parameters := operation.get("parameters"):
        yield "<h4>Parameters</h4>"
        rows = ((one["name"], one["schema"], _placed(one)) for one in parameters)
        yield from _table("parameter", rows)
    body = _json(operation.get("requestBody", {}))
    if body:
        must = "needed" if operation["requestBody"].get("required") else "may be left out"
        yield f"<h4>Body, {must}</h4><p>{_kind(body)}</p>"
    yield from _try(method, path, body, operation, description)
    yield "<h4>Answers</h4>"
    yield from _answers(operation["responses"])
    yield "</article>"


def _placed(parameter: Schema) -> str:
    needed = ", needed" if parameter.get("required") else ""
    return f"In the {parameter['in']}{needed}. {parameter.get('description', '')}"


def _try(method: str, path: str, body: Schema | None, operation: Schema, description: Schema) -> Iterator[str]:
    """How to ask, as something to click on or to copy."""
    if method == "get" and "{" not in path:
        yield f'<h4>Example</h4><p><a href="{escape(path)}">See it now</a></p>'
        return
    line = f"curl{'' if method == 'get' else f' -X {method.upper()}'}"
    if operation.get("security"):
        line += ' -H "Authorization: Bearer $(cat tokens/ops)"'
    example = _example(body, description)
    if example is not None:
        line += f" -H 'content-type: application/json' -d '{json.dumps(example)}'"
    yield f"<h4>Example</h4><pre>{escape(line)} {escape(f'http://localhost:8080{_filled(path)}')}</pre>"


def _filled(path: str) -> str:
    return path.replace("{number}", "37").replace("{operation_id}", "0b8e4f6f9a13")


def _example(body: Schema | None, description: Schema) -> Any:
    """The first example of the body's shape."""
    for option in () if body is None else body.get("anyOf", [body]):
        if (reference := option.get("$ref")) is not None:
            shape = description["components"]["schemas"][reference.removeprefix(_REFERENCE)]
            return next(iter(shape.get("examples", [])), None)
    return None


def _answers(responses: Mapping[str, Schema]) -> Iterator[str]:
    """What may be hoped for, and folded away what may go wrong."""
    problems = {status: response for status, response in responses.items() if MEDIA_TYPE in response.get("content", {})}
    yield from _statuses({status: response for status, response in responses.items() if status not in problems})
    if problems:
        yield f"<details><summary>or a problem document: {', '.join(problems)}</summary>"
        yield from _statuses(problems)
        yield "</details>"


def _statuses(responses: Mapping[str, Schema]) -> Iterator[str]:
    yield "<table><thead><tr><th>status</th><th>when</th><th>what</th></tr></thead><tbody>"
    for status, response in responses.items():
        schema = _json(response)
        yield (
            f'<tr><th scope="row">{escape(status)}</th><td>{_marked(response["description"])}</td>'
            f"<td>{'' if schema is None else _kind(schema)}</td></tr>"
        )
    yield "</tbody></table>"


def _json(message: Schema) -> Schema | None:
    """The schema of a body or an answer, whatever its media type."""
    content = message.get("content", {})
    return next((one["schema"] for one in content.values() if one.get("schema")), None)


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield f'<article id="{escape(name)}"><h3>{escape(name)}</h3><p>{_marked(schema.get("description", ""))}</p>'
    fields = schema.get("properties", {})
    needed = set(schema.get("required", ()))
    rows = (
        (field, one, ("" if field in needed else "May be left out. ") + _said(one)) for field, one in fields.items()
    )
    if fields:
        yield from _table("field", rows)
    yield "</article>"


def _said(schema: Schema) -> str:
    return str(schema.get("description", ""))


def _table(what: str, rows: Iterator[tuple[str, Schema, str]]) -> Iterator[str]:
    yield f"<table><thead><tr><th>{what}</th><th>what it is</th><th>what it says</th></tr></thead><tbody>"
    for name, schema, text in rows:
        yield (
            f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{_kind(schema)}{_bounds(schema)}</td>'
            f"<td>{_marked(text)}</td></tr>"
        )
    yield "</tbody></table>"


_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "null": "null", "number": "number"}


def _kind(schema: Schema) -> str:
    """What a value is, as HTML."""
    if reference := schema.get("$ref"):
        name = escape(str(reference).removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        return ", ".join(f"<code>{escape(str(choice))}</code>" for choice in choices)
    if options := schema.get("anyOf"):
        kinds = (_kind(option) for option in options if option.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {_kind(inner)}" if isinstance(inner, Mapping) else "mapping"
    return _WORDS.get(str(schema.get("type")), "anything")


def _bounds(schema: Schema) -> str:
    """What a number or a default is held to."""
    options = [schema, *schema.get("anyOf", ())]
    least, most = (next((one[key] for one in options if key in one), None) for key in ("minimum", "maximum"))
    within = "" if least is None or most is None else f", {least:,.0f} to {most:,.0f}"
    default = schema.get("default")
    return escape(within + ("" if default is None else f", {json.dumps(default)} unless told"))


def _marked(text: str) -> str:
    """A sentence whose `words` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
