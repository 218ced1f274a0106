"""Grade-school word problems of 2 to 5 steps with worked solutions: the playground's GSM8K.

A problem is a story about one running total: an opening, some events, and perhaps a last event that divides or prices
what is left. The worked solution has one short sentence per step, and ends in a final answer that a rule can check.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .wording import Template, Voice, read_number, templates, write_number

LARGEST_TOTAL = 999
LARGEST_ANSWER = 9999
HARD_PRICES = 0.8
"""Share of prices with two digits. Their products are at the edge of what the target can do in its head, so now and
then a wrong digit looks likely to it: a rule that trusts the target's probability then accepts an error."""
STEP_COUNTS = (2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 5)
"""Numbers of steps, as often as they are drawn."""


@dataclass(frozen=True)
class Scene:
    """Where a story takes place and the words it uses."""

    place: str
    """Who owns the things, with an article: `a bakery`."""
    item: str
    """One of the things that are counted."""
    items: str
    """Several of them."""
    boxes: str
    """What they come in."""
    kinds: tuple[str, str]
    """Two sorts of them."""
    gain: str
    """Verb for getting more."""
    lose: str
    """Verb for giving some away."""
    receivers: tuple[str, str]
    """Who shares them out in the end: one, several."""


SCENES: tuple[Scene, ...] = (
    Scene("a bakery", "roll", "rolls", "trays", ("plain", "seeded"), "bakes", "sells", ("shop", "shops")),
    Scene("a library", "book", "books", "shelves", ("old", "new"), "buys", "lends out", ("class", "classes")),
    Scene("an orchard", "apple", "apples", "crates", ("red", "green"), "picks", "ships", ("market", "markets")),
    Scene("a farm", "egg", "eggs", "baskets", ("brown", "white"), "collects", "sells", ("cook", "cooks")),
    Scene("a toy shop", "marble", "marbles", "bags", ("glass", "steel"), "orders", "sells", ("child", "children")),
    Scene("a school", "pencil", "pencils", "packs", ("red", "blue"), "buys", "hands out", ("pupil", "pupils")),
    Scene("a museum", "stamp", "stamps", "albums", ("rare", "common"), "receives", "lends out", ("room", "rooms")),
    Scene(
        "a print shop", "poster", "posters", "tubes", ("large", "small"), "prints", "delivers", ("school", "schools")
    ),
    Scene("a dairy", "bottle", "bottles", "racks", ("big", "small"), "fills", "ships", ("cafe", "cafes")),
    Scene("a workshop", "screw", "screws", "jars", ("long", "short"), "orders", "uses", ("bench", "benches")),
    Scene("a post office", "parcel", "parcels", "carts", ("heavy", "light"), "receives", "delivers", ("van", "vans")),
    Scene("a sewing shop", "button", "buttons", "tins", ("black", "white"), "buys", "uses", ("coat", "coats")),
    Scene("a flower shop", "rose", "roses", "buckets", ("red", "yellow"), "cuts", "sells", ("vase", "vases")),
    Scene("a hotel", "towel", "towels", "stacks", ("thick", "thin"), "buys", "uses", ("floor", "floors")),
    Scene("a club", "badge", "badges", "boxes", ("round", "square"), "makes", "gives away", ("team", "teams")),
    Scene("a building site", "brick", "bricks", "pallets", ("grey", "red"), "orders", "uses", ("wall", "walls")),
)

STORY: dict[str, Template] = {
    "has": Template("story", "{Place} [has|owns|starts with] {a} {items}."),
    "boxes": Template("story", "{Place} has {a} {boxes} [with|of] {b} {items} each."),
    "kinds": Template("story", "{Place} has {a} {kind} {items} and {b} {other} {items}."),
    "gain": Template("story", "[Then|Later|On Monday|The next day] it {gain} {a} more[.| {items}.]"),
    "lose": Template("story", "[Then|Later|On Friday|After that] it {lose} {a} [of them|{items}]."),
    "arrive": Template("story", "[Then|Later|Next,] {a} {boxes} of {b} {items} [arrive|are added]."),
    "leave": Template("story", "[Then|Later|Next,] {a} {boxes} of {b} {items} are [taken away|lost]."),
    "times": Template("story", "[By May|In a year|Soon] it has {a} times as many."),
    "share": Template("story", "[All the|The] {items} are shared [equally|evenly] among {a} {receivers}."),
    "price": Template("story", "Each {item} [costs|is worth] {a} coins."),
}
QUESTIONS: dict[str, Template] = {
    "count": Template("question", "How many {items} [are there now|does it have now|are there in the end]?"),
    "share": Template("question", "How many {items} does each {receiver} get?"),
    "price": Template("question", "[How many coins are all the {items} worth|What is the total value in coins]?"),
}

# One sentence per step. Every form states the operation and its result; {eq} is a word or a sign for equality.
STEPS: dict[str, tuple[Template, ...]] = {
    "+": templates(
        "add",
        "{a} + {b} {eq} {c}[| {unit}]",
        "<we add|let us add> {b} to {a}[:|, so|;] {a} + {b} {eq} {c}",
        "the [total|sum|count] <is|becomes> {a} + {b} = {c}",
        "[adding|putting together] {a} and {b} <gives|makes|yields> {c}[| {unit}]",
    ),
    "-": templates(
        "subtract",
        "{a} - {b} {eq} {c}[| {unit}]",
        "<we take|let us take> {b} [from|off] {a}[:|, so|;] {a} - {b} {eq} {c}",
        "the [rest|remainder|count] <is|becomes> {a} - {b} = {c}",
        "<taking|removing> {b} from {a} <leaves|gives> {c}[| {unit}]",
    ),
    "*": templates(
        "multiply",
        "{a} <*|x|times> {b} {eq} {c}[| {unit}]",
        "<we multiply|let us multiply> {a} by {b}[:|, so|;] {a} <*|x> {b} {eq} {c}",
        "the [product|total|count] <is|becomes> {a} <*|x> {b} = {c}",
        "<{b} times {a}|multiplying {a} by {b}> [gives|makes|yields] {c}[| {unit}]",
    ),
    "/": templates(
        "divide",
        "{a} </|divided by> {b} {eq} {c}[| {unit}]",
        "<we divide|let us divide> {a} by {b}[:|, so|;] {a} / {b} {eq} {c}",
        "[one part|each share|every part] <is|has> {a} / {b} = {c}",
        "[sharing|dividing] {a} among {b} <gives|yields> {c} [each|apiece|per share]",
    ),
}
FIRST_OPENERS = ("first, ", "to begin, ", "we start: ", "")
NEXT_OPENERS = ("then ", "next, ", "after that, ", "now ")
LAST_OPENERS = ("finally, ", "in the end, ", "last, ", "then ")
EQUALS = ("=", "is", "makes")
JOINS = (". ", "; ", ". ")
FINALS = templates(
    "final",
    "The [final |]answer is {answer}.",
    "Answer: {answer}.",
    "[So|Thus|Hence] the answer is {answer}.",
    "[That means|This tells us] the answer is {answer} {unit}.",
)

_FINAL = re.compile(r"answer\s*(?:is|:|=)?\s*(\d[\d,]*)", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*")


def draw(rng: random.Random) -> dict[str, Any]:
    """A random problem: `{"scene": index, "events": [[kind, a, b], ...], "answer": number}`."""
    rand = rng.random
    steps = STEP_COUNTS[int(rand() * len(STEP_COUNTS))]
    events: list[list[Any]] = []
    total = _open(rand, events)
    done = 0 if events[0][0] == "has" else 1
    while done < steps:
        event = _next_event(rand, total, steps - done)
        if event is None:
            continue
        total = apply(event, total)
        done += 2 if event[0] in ("arrive", "leave") else 1
        events.append(event)
    return {"scene": int(rand() * len(SCENES)), "events": events, "answer": total}


def _open(rand: Any, events: list[list[Any]]) -> int:
    """Append a random opening to `events`; the total it leaves."""
    kind = rand()
    if kind < 0.4:
        events.append(["has", 24 + int(rand() * 300), 0])
    elif kind < 0.7:
        events.append(["boxes", 3 + int(rand() * 12), 11 + int(rand() * 38)])
    else:
        events.append(["kinds", 14 + int(rand() * 260), 14 + int(rand() * 260)])
    return apply(events[0], 0)


def _next_event(rand: Any, total: int, left: int) -> list[Any] | None:
    """A random event that keeps the story sensible, or None if the dice ask for one that would not."""
    kind = rand()
    if left == 1 and kind < 0.22:
        divisors = [d for d in range(2, 10) if total % d == 0 and total > 2 * d]
        return ["share", divisors[int(rand() * len(divisors))], 0] if divisors else None
    if left == 1 and kind < 0.40:
        price = 11 + int(rand() * 15) if rand() < HARD_PRICES else 2 + int(rand() * 8)
        return ["price", price, 0] if total * price <= LARGEST_ANSWER else None
    if kind < 0.55:
        gain = 12 + int(rand() * 288)
        return ["gain", gain, 0] if total + gain <= LARGEST_TOTAL else None
    if kind < 0.78:
        loss = 11 + int(rand() * 280)
        return ["lose", loss, 0] if loss < total - 5 else None
    if kind < 0.88:
        times = 2 + int(rand() * 4)
        return ["times", times, 0] if total * times <= LARGEST_TOTAL else None
    if left < 2:
        return None
    count, each = 2 + int(rand() * 8), 11 + int(rand() * 38)
    if kind < 0.95:
        return ["arrive", count, each] if total + count * each <= LARGEST_TOTAL else None
    return ["leave", count, each] if count * each < total - 5 else None


def steps_of(event: list[Any], total: int) -> list[tuple[str, int, int, int]]:
    """The calculations `(operator, left, right, result)` that an event asks for, given the total before it."""
    kind, a, b = event
    if kind == "has":
        return []
    if kind == "boxes":
        return [("*", a, b, a * b)]
    if kind == "kinds":
        return [("+", a, b, a + b)]
    if kind == "gain":
        return [("+", total, a, total + a)]
    if kind == "lose":
        return [("-", total, a, total - a)]
    if kind == "share":
        return [("/", total, a, total // a)]
    if kind in ("times", "price"):
        return [("*", total, a, total * a)]
    if kind == "arrive":
        return [("*", a, b, a * b), ("+", total, a * b, total + a * b)]
    return [("*", a, b, a * b), ("-", total, a * b, total - a * b)]


def apply(event: list[Any], total: int) -> int:
    """The total after an event."""
    return int(event[1]) if event[0] == "has" else steps_of(event, total)[-1][3]


def key(facts: Mapping[str, Any]) -> str:
    """What makes two problems the same, whatever their wording."""
    return f"{facts['scene']}:{facts['events']}"


def ask(facts: Mapping[str, Any], voice: Voice) -> str:
    """The problem as a user's message, in this voice."""
    fields = _fields(facts)
    last = facts["events"][-1][0]
    story = [STORY[kind].write(voice, fields | {"a": a, "b": b}) for kind, a, b in facts["events"]]
    question = QUESTIONS[last if last in QUESTIONS else "count"].write(voice, fields)
    return " ".join((voice.header(), *story, question))


def answer(facts: Mapping[str, Any], voice: Voice) -> str:
    """One worked solution: one sentence per step, then the final answer, in this voice."""
    fields = _fields(facts)
    steps: list[tuple[str, int, int, int]] = []
    total = 0
    for event in facts["events"]:
        steps += steps_of(event, total)
        total = apply(event, total)
    text = ""
    for index, step in enumerate(steps):
        final = index == len(steps) - 1
        openers = FIRST_OPENERS if index == 0 else LAST_OPENERS if final else NEXT_OPENERS
        # Only the last step can be about coins; the steps before it count things.
        unit = fields["unit"] if final else fields["items"]
        sentence = voice.styled("opener", openers, index) + _step(step, index, unit, voice)
        starts = not text or text.endswith(". ")
        text += sentence[0].upper() + sentence[1:] if starts else sentence
        text += ". " if final else voice.free(JOINS)
    number = write_number(voice, facts["answer"], 1)
    return text + voice.styled("final", FINALS).write(voice, fields | {"answer": number})


def _fields(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a problem's scene, for templates."""
    scene = SCENES[facts["scene"]]
    return vars(scene) | {
        "Place": scene.place[0].upper() + scene.place[1:],
        "kind": scene.kinds[0],
        "other": scene.kinds[1],
        "receiver": scene.receivers[0],
        "receivers": scene.receivers[1],
        "unit": "coins" if facts["events"][-1][0] == "price" else scene.items,
    }


def _step(step: tuple[str, int, int, int], index: int, unit: str, voice: Voice) -> str:
    """The sentence of one calculation; its form is styled in every other step and free in the rest."""
    operator, a, b, c = step
    forms = STEPS[operator]
    form = voice.free(forms) if index % 2 else voice.styled("form" + operator, forms, index)
    values = {"a": a, "b": b, "c": write_number(voice, c), "eq": voice.free(EQUALS), "unit": unit}
    return form.write(voice, values, index)


def score(facts: Mapping[str, Any], response: str) -> float:
    """1 if the final answer is right, else 0; without a final answer line the last number counts."""
    found = _FINAL.findall(response) or _NUMBER.findall(response)
    return float(bool(found) and read_number(found[-1]) == facts["answer"])
