"""The generated parts of protocol.md: the elements, out of the schema, and the rules, out of the code."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from orchestrator.envelope import schemas

_XS = "{http://www.w3.org/2001/XMLSchema}"
_REQUIRED = {"0": "optional", "1": "required"}


def rules_table(*severities: str) -> str:
    """One row for each rule of layers 1 and 2 of the given severities."""
    from orchestrator.envelope.catalogue import RULES

    rows = ["| rule | checked by | demands |", "| --- | --- | --- |"]
    rows += [f"| `{n}` | {r.by} | {r.demands} |" for n, r in RULES.items() if r.severity in severities]
    return "\n".join(rows)


def live_rules_table() -> str:
    """One row for each rule of layer 3, those about signatures included."""
    from orchestrator.envelope.signature import RULES as SIGNATURE_RULES
    from orchestrator.router.validation.validator import RULES

    demands = {**{name: text for name, (_, text) in RULES.items()}, **SIGNATURE_RULES}
    return "\n".join(
        ["| rule | demands |", "| --- | --- |", *(f"| `{n}` | {d} |" for n, d in demands.items())]
    )


def elements_table(type_name: str) -> str:
    """One row for each element and attribute of a complex type, and of the types inside it, once each."""
    types = {t.get("name"): t for t in _schema() if t.get("name")}
    rows = ["| element | occurs | holds | meaning |", "| --- | --- | --- | --- |"]
    found = dict.fromkeys(_rows(types[type_name], types, "", set()))
    rows += [f"| `{path}` | {occurs} | {holds} | {meaning} |" for path, occurs, holds, meaning in found]
    return "\n".join(rows)


def values_table() -> str:
    """One row for each simple type."""
    rows = ["| type | meaning |", "| --- | --- |"]
    rows += [
        f"| `{t.get('name')}` | {_doc(t)}{_listed(t)} |" for t in _schema() if t.tag == f"{_XS}simpleType"
    ]
    return "\n".join(rows)


def _schema() -> etree._Element:
    return etree.fromstring(schemas.read(schemas.AGENT_MESSAGE))


def _rows(
    kind: etree._Element, types: dict[str | None, etree._Element], path: str, shown: set[str]
) -> Iterator[tuple[str, str, str, str]]:
    for attribute in kind.iter(f"{_XS}attribute"):
        if attribute.get("type") == "ao:text-encoding" and attribute.get("use") != "required":
            continue  # the page says under "Text" which elements have it
        occurs = "required" if attribute.get("use") == "required" else "optional"
        name = f"{path.rstrip('/')}/@{attribute.get('name')}" if path else f"@{attribute.get('name')}"
        yield name, occurs, _holds(attribute), _doc(attribute)
    for element in kind.iter(f"{_XS}element"):
        occurs = _REQUIRED[element.get("minOccurs", "1")]
        if element.get("maxOccurs") == "unbounded":
            occurs = "any number"
        name = path + (element.get("name") or "")
        holds = _holds(element)
        inner = types.get(holds)
        yield name, occurs, holds, _doc(element)
        if inner is not None and inner.tag == f"{_XS}complexType" and holds != "text" and holds not in shown:
            shown.add(holds)
            yield from _rows(inner, types, f"{name}/", shown)


def _holds(node: etree._Element) -> str:
    return (node.get("type") or "").removeprefix("ao:").removeprefix("xs:")


def _listed(kind: etree._Element) -> str:
    values = [f"`{e.get('value')}`" for e in kind.iter(f"{_XS}enumeration")]
    if not values:
        pattern = next((p.get("value") or "" for p in kind.iter(f"{_XS}pattern")), "")
        inside = pattern.removeprefix(r"[ \t\n\r]*(").removesuffix(r")[ \t\n\r]*")
        words = inside.split("|")
        if len(words) > 1 and all(w.replace("-", "").isalnum() and not w[0].isdigit() for w in words):
            values = [f"`{w}`" for w in words]
    return f" One of {', '.join(values)}." if values else ""


def _doc(node: etree._Element) -> str:
    text = node.findtext(f"{_XS}annotation/{_XS}documentation") or ""
    return text.replace("|", "\\|").replace("<", "&lt;")
