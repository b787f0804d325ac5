"""Writes models as XML text that is in exclusive canonical form as it stands.

For each model one function is made from its fields, once. No XML library is involved: the form of
everything but free text is fixed by the model's types, and free text is escaped here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from orchestrator.envelope.model_values import (
    UNFIT,
    Attribute,
    Binding,
    Content,
    Items,
    Kind,
    Numbered,
    Part,
    Repeated,
    bindings,
)

Add = Callable[[str], None]
Write = Callable[[Any, Add], None]


def escape_text(text: str) -> str:
    """``text`` as canonical XML has it between tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#xD;")


def escape_attribute(text: str) -> str:
    """``text`` as canonical XML has it between double quotes."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("\t", "&#x9;").replace("\n", "&#xA;").replace("\r", "&#xD;")


def _flag(value: Any) -> str:
    return "true" if value else "false"


def _hours(value: Any) -> str:
    return format(value, "f")


_SCALAR: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.NAME: escape_text,
    Kind.TOKEN: str,
    Kind.TIMESTAMP: str,
    Kind.INTEGER: str,
    Kind.HOURS: _hours,
    Kind.FLAG: _flag,
    Kind.BASE64: str,
    Kind.RAW: escape_attribute,
}


def _text(text: str) -> tuple[str, str]:
    """Free text between tags, and the attribute that says how it is encoded."""
    if text.isprintable() or not UNFIT.search(text):
        return escape_text(text), ""
    return b64encode(text.encode()).decode(), ' encoding="base64"'


def _scalar_writer(kind: Kind, tag: str) -> Write:
    start, end = f"<{tag}>", f"</{tag}>"
    if kind is Kind.TEXT:

        def write_text(value: Any, add: Add) -> None:
            text, encoding = _text(value)
            add(f"<{tag}{encoding}>{text}{end}")

        return write_text
    to_text = _SCALAR[kind]

    def write_scalar(value: Any, add: Add) -> None:
        add(f"{start}{to_text(value)}{end}")

    return write_scalar


def _attributes_writer(fields: list[Binding]) -> Callable[[dict[str, Any]], str]:
    """Writes attributes in canonical order; ``encoding`` comes before all that it can meet."""
    steps = [
        (field.name, f' {field.tag}="', _SCALAR[field.kind or Kind.RAW])
        for field in sorted(fields, key=lambda field: field.tag)
        if isinstance(field.mark, Attribute)
    ]

    def write(values: dict[str, Any]) -> str:
        marks = ""
        for name, head, to_text in steps:
            value = values[name]
            if value is not None:
                marks += f'{head}{to_text(value)}"'
        return marks

    return write


def part_writer(model: type[Part], tag: str) -> Write:
    """Writes a ``model`` as the element ``tag``."""
    fields = bindings(model)
    attributes = _attributes_writer(fields)
    start, end = f"<{tag}", f"</{tag}>"
    content = next((field for field in fields if isinstance(field.mark, Content)), None)
    if content is None:
        write_fields = fields_writer(model)

        def write(part: Any, add: Add) -> None:
            add(f"{start}{attributes(part.__dict__)}>")
            write_fields(part, add)
            add(end)

        return write
    name, is_text, to_text = (
        content.name,
        content.kind is Kind.TEXT,
        _SCALAR.get(content.kind or Kind.RAW, str),
    )

    def write_leaf(part: Any, add: Add) -> None:
        values = part.__dict__
        text, encoding = _text(values[name]) if is_text else (to_text(values[name]), "")
        add(f"{start}{encoding}{attributes(values)}>{text}{end}")

    return write_leaf


def _list_writer(field: Binding) -> Write:
    assert isinstance(field.mark, Items | Numbered | Repeated)
    tag = field.mark.name
    start, end = ("", "") if isinstance(field.mark, Repeated) else (f"<{field.tag}>", f"</{field.tag}>")
    if isinstance(field.mark, Numbered):

        def write_numbered(items: Any, add: Add) -> None:
            if items:
                refs = "".join(f'<{tag} index="{i}">{item}</{tag}>' for i, item in enumerate(items))
                add(f"{start}{refs}{end}")

        return write_numbered
    write_item = _held_writer(field, tag)

    def write(items: Any, add: Add) -> None:
        if items:
            add(start)
            for item in items:
                write_item(item, add)
            add(end)

    return write


def _held_writer(field: Binding, tag: str) -> Write:
    if field.model is not None:
        return part_writer(field.model, tag)
    assert field.kind is not None
    return _scalar_writer(field.kind, tag)


def fields_writer(model: type[Part]) -> Write:
    """Writes the fields of a ``model`` that are elements, in their order, with nothing around them."""
    steps = [
        (field.name, _held_writer(field, field.tag) if field.mark is None else _list_writer(field))
        for field in bindings(model)
        if not isinstance(field.mark, Attribute | Content)
    ]

    def write(part: Any, add: Add) -> None:
        values = part.__dict__
        for name, step in steps:
            value = values[name]
            if value is not None:
                step(value, add)

    return write
