"""Descriptions as Atom, the way the administration API gives and takes them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from .rules import Always, Correlation, Filter

ATOM = "http://www.w3.org/2005/Atom"
SERVICEBUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
TYPE = f"{{{INSTANCE}}}type"
COUNTED = ("ActiveMessageCount", "DeadLetterMessageCount", "ScheduledMessageCount")
NEVER_COUNTED = ("TransferMessageCount", "TransferDeadLetterMessageCount")
# What the service says of an entity, and a client may send back without changing it.
TOLD = {"CountDetails", "MessageCount", "SizeInBytes", "SubscriptionCount", "CreatedAt", "UpdatedAt", "AccessedAt"}

ElementTree.register_namespace("i", INSTANCE)


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def description_in(body: bytes) -> Element:
    """The description in an entry. Raises ValueError if there is none."""
    try:
        content = ElementTree.fromstring(body).find(f"{{{ATOM}}}content")
    except ElementTree.ParseError as error:
        raise ValueError(f"this is no XML: {error}") from error
    if content is None or not len(content):
        raise ValueError("the entry has no description")
    return content[0]


def texts(description: Element) -> dict[str, str]:
    """What is said in one text each."""
    return {
        _name(child): child.text
        for child in description
        if child.text and child.text.strip() and not len(child) and _name(child) not in TOLD
    }


def described(kind: str, facts: Mapping[str, str], counts: Mapping[str, int] | None = None) -> Element:
    """`kind` is QueueDescription, TopicDescription or SubscriptionDescription."""
    element = Element(f"{{{SERVICEBUS}}}{kind}")
    for name, text in facts.items():
        SubElement(element, f"{{{SERVICEBUS}}}{name}").text = text
    if counts is not None:
        details = SubElement(element, f"{{{SERVICEBUS}}}CountDetails")
        for name in (*COUNTED, *NEVER_COUNTED):
            SubElement(details, f"{{{COUNTS}}}{name}").text = str(counts.get(name, 0))
    return element


def entry(title: str, content: Element) -> Element:
    element = Element(f"{{{ATOM}}}entry")
    SubElement(element, f"{{{ATOM}}}title", {"type": "text"}).text = title
    SubElement(element, f"{{{ATOM}}}content", {"type": "application/xml"}).append(content)
    return element


def feed(title: str, entries: Iterable[Element], following: str | None = None) -> Element:
    """`following` is where the list goes on."""
    element = Element(f"{{{ATOM}}}feed")
    SubElement(element, f"{{{ATOM}}}title", {"type": "text"}).text = title
    SubElement(element, f"{{{ATOM}}}link", {"rel": "self", "href": title})
    if following is not None:
        SubElement(element, f"{{{ATOM}}}link", {"rel": "next", "href": following})
    element.extend(entries)
    return element


def error(status: int, detail: str) -> Element:
    element = Element("Error")
    SubElement(element, "Code").text = str(status)
    SubElement(element, "Detail").text = detail
    return element


def written(element: Element) -> bytes:
    return bytes(ElementTree.tostring(element, encoding="utf-8", xml_declaration=True))


def rule_in(description: Element) -> Filter:
    """Raises ValueError for a filter that the double does not have: of SQL it knows none."""
    found = description.find(f"{{{SERVICEBUS}}}Filter")
    kind = "TrueFilter" if found is None else found.get(TYPE, "").rpartition(":")[2]
    if kind in ("TrueFilter", "FalseFilter"):
        return Always(kind == "TrueFilter")
    if kind != "CorrelationFilter" or found is None:
        raise ValueError(f"the double has no {kind}")
    properties = found.find(f"{{{SERVICEBUS}}}Properties")
    return Correlation(fields=texts(found), properties=_key_values(() if properties is None else properties))


def _key_values(pairs: Iterable[Element]) -> dict[str, str | int | float | bool]:
    found = {}
    for pair in pairs:
        key, value = pair.findtext(f"{{{SERVICEBUS}}}Key"), pair.find(f"{{{SERVICEBUS}}}Value")
        if key is not None and value is not None:
            found[key] = _value(value.get(TYPE, "").rpartition(":")[2], value.text or "")
    return found


def _value(kind: str, text: str) -> str | int | float | bool:
    if kind in ("int", "long"):
        return int(text)
    if kind == "double":
        return float(text)
    return text == "true" if kind == "boolean" else text


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
