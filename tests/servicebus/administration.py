"""The administration API: entities are made, looked at, changed and deleted over HTTP, in Atom."""

from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from aiohttp import web

from . import atom
from .broker import Broker
from .namespace import Described, QueueEntity, Subscription, Topic
from .queues import Queue

CONTENT_TYPE = "application/atom+xml"


class ProblemError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Administration:
    """What is made here is there for the AMQP side at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._namespace = broker.namespace

    def application(self) -> web.Application:
        made = web.Application()
        made.router.add_route("*", "/{path:.*}", self._handle)
        return made

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            status, element = self._answer(request, body)
        except ProblemError as problem:
            status, element = problem.status, atom.error(problem.status, str(problem))
        except ValueError as error:
            status, element = 400, atom.error(400, str(error))
        self._broker.pump()
        content = b"" if element is None else atom.written(element)
        return web.Response(status=status, body=content, content_type=CONTENT_TYPE)

    def _answer(self, request: web.Request, body: bytes) -> tuple[int, Element | None]:
        if not self._broker.key.accepts(request.headers.get("Authorization", "")):
            raise ProblemError(401, "InvalidSignature: The token is not valid.")
        path = request.match_info["path"].strip("/")
        if request.method == "GET":
            return 200, self._get(path, request.query)
        if request.method == "PUT":
            is_update = "If-Match" in request.headers
            return (200 if is_update else 201), self._put(path, body, is_update=is_update)
        if request.method == "DELETE":
            return self._delete(path)
        raise ProblemError(405, f"{request.method} is not allowed")

    def _get(self, path: str, query: Any) -> Element:
        skip, top = int(query.get("$skip", 0)), int(query.get("$top", 100))
        listed = self._listed(path)
        if listed is not None:
            following = f"{path}?$skip={skip + top}&$top={top}" if skip + top < len(listed) else None
            return atom.feed(path, listed[skip : skip + top], following)
        found = self._found(path)
        # The service answers so for what is not there, and the client knows it.
        return atom.feed(path, []) if found is None else found

    def _listed(self, path: str) -> list[Element] | None:
        namespace = self._namespace
        parts = path.lower().split("/")
        if parts == ["$resources", "queues"]:
            return [_entry(each) for each in namespace.queues.values()]
        if parts == ["$resources", "topics"]:
            return [_entry(each) for each in namespace.topics.values()]
        if len(parts) == 2 and parts[1] == "subscriptions":
            return [_entry(each) for each in self._topic(parts[0]).subscriptions.values()]
        if len(parts) == 4 and parts[3] == "rules":
            rules = self._subscription(parts[0], parts[2]).rules
            return [_rule_entry(name, described) for name, (_, described) in rules.items()]
        return None

    def _found(self, path: str) -> Element | None:
        topic, subscription, rule = _parts(path)
        if subscription is None:
            entity = self._namespace.target(path)
            return None if entity is None else _entry(entity)
        known = self._namespace.topics.get(topic.lower())
        found = known.subscriptions.get(subscription.lower()) if known else None
        if found is None or rule is None:
            return None if found is None else _entry(found)
        named = {name.lower(): name for name in found.rules}.get(rule.lower())
        return None if named is None else _rule_entry(named, found.rules[named][1])

    def _put(self, path: str, body: bytes, *, is_update: bool) -> Element | None:
        if (self._found(path) is not None) != is_update:
            raise ProblemError(*(404, f"there is no {path}") if is_update else (409, f"{path} is there already"))
        topic, subscription, rule = _parts(path)
        described = atom.description_in(body)
        if subscription is not None and rule is not None:
            wanted = atom.rule_in(described)
            self._subscription(topic, subscription).rules[rule] = (wanted, ElementTree.tostring(described, "unicode"))
            return self._found(path)
        facts = atom.texts(described)
        self._check_forward(facts)
        if is_update:
            self._entity(path).describe(facts)
        elif subscription is not None:
            self._topic(topic)
            self._namespace.create_subscription(topic, subscription, facts)
        elif described.tag.endswith("TopicDescription"):
            self._namespace.create_topic(path, facts)
        else:
            self._namespace.create_queue(path, facts)
        return self._found(path)

    def _delete(self, path: str) -> tuple[int, Element | None]:
        if self._found(path) is None:
            raise ProblemError(404, f"there is no {path}")
        topic, subscription, rule = _parts(path)
        if rule is not None and subscription is not None:
            rules = self._subscription(topic, subscription).rules
            del rules[next(name for name in rules if name.lower() == rule.lower())]
        elif subscription is not None:
            del self._topic(topic).subscriptions[subscription.lower()]
        else:
            self._namespace.queues.pop(path.lower(), None)
            self._namespace.topics.pop(path.lower(), None)
        return 200, None

    def _check_forward(self, facts: dict[str, str]) -> None:
        forward_to = facts.get("ForwardTo")
        if forward_to and self._namespace.target(forward_to.partition("//")[2].partition("/")[2]) is None:
            raise ProblemError(400, f"ForwardTo names {forward_to}, and there is no such entity")

    def _topic(self, name: str) -> Topic:
        if name.lower() not in self._namespace.topics:
            raise ProblemError(404, f"there is no topic {name}")
        return self._namespace.topics[name.lower()]

    def _subscription(self, topic: str, name: str) -> Subscription:
        known = self._topic(topic).subscriptions
        if name.lower() not in known:
            raise ProblemError(404, f"topic {topic} has no subscription {name}")
        return known[name.lower()]

    def _entity(self, path: str) -> Described:
        topic, subscription, _ = _parts(path)
        if subscription is not None:
            return self._subscription(topic, subscription)
        entity = self._namespace.target(path)
        if entity is None:
            raise ProblemError(404, f"there is no {path}")
        return entity


def _parts(path: str) -> tuple[str, str | None, str | None]:
    """The topic or queue, the subscription, and the rule."""
    parts = path.split("/")
    if len(parts) >= 3 and parts[1].lower() == "subscriptions":
        return parts[0], parts[2], parts[4] if len(parts) == 5 else None
    return path, None, None


def _entry(entity: Described) -> Element:
    facts = {
        **entity.description,
        "CreatedAt": atom.moment(entity.created_at),
        "UpdatedAt": atom.moment(entity.updated_at),
        "AccessedAt": atom.moment(entity.updated_at),
    }
    if isinstance(entity, Topic):
        facts |= {"SizeInBytes": "0", "SubscriptionCount": str(len(entity.subscriptions))}
        return atom.entry(
            entity.name, atom.described("TopicDescription", facts, {"ScheduledMessageCount": len(entity.scheduled)})
        )
    assert isinstance(entity, QueueEntity)
    counts = _counts(entity.queue)
    facts |= {"SizeInBytes": str(entity.queue.size()), "MessageCount": str(sum(counts.values()))}
    kind = "SubscriptionDescription" if isinstance(entity, Subscription) else "QueueDescription"
    return atom.entry(entity.name, atom.described(kind, facts, counts))


def _counts(queue: Queue) -> dict[str, int]:
    counts = queue.counts()
    return dict(zip(atom.COUNTED, (counts["active"], counts["dead_letters"], counts["scheduled"]), strict=True))


def _rule_entry(name: str, described: str) -> Element:
    content = ElementTree.fromstring(described) if described else _default_rule()
    return atom.entry(name, content)


def _default_rule() -> Element:
    element = atom.described("RuleDescription", {})
    ElementTree.SubElement(element, f"{{{atom.SERVICEBUS}}}Filter", {atom.TYPE: "TrueFilter"})
    ElementTree.SubElement(element, f"{{{atom.SERVICEBUS}}}Action", {atom.TYPE: "EmptyRuleAction"})
    ElementTree.SubElement(element, f"{{{atom.SERVICEBUS}}}Name").text = "$Default"
    return element
