"""Open-ended instructions (describe, list, rewrite, invite, advise): the playground's Dolly.

No answer is the right one, so there is no task score here: judges must be trained and compared without it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .wording import Template, Voice, phrases, templates, words

THINGS = words(
    "lamp boat garden bridge kitchen coat market tower clock forest piano cottage station bench river mill barn chapel "
    "fountain statue harbour window"
)
LOOKS = words("old small bright quiet wooden painted round empty famous dusty narrow golden silent odd rusty plain")
SETTINGS = phrases(
    "by the sea,in the rain,at night,in winter,after a storm,in spring,at noon,near a hill,on a farm,"
    "in the fog,at dawn,in the snow,behind a wall,under a bridge"
)
TRIPS = words("lake mountain desert island village beach city valley coast forest river harbour")
KINDS = words("nearby quiet famous windy remote sunny foggy northern southern big little distant")
SEASONS = words("spring summer autumn winter January March April June July September October December")
SUPPLIES = phrases(
    "a map,a warm hat,a water bottle,some bread,a torch,a first aid kit,a raincoat,sun cream,a book,spare socks,"
    "a camera,a blanket"
)
ORDERS = {
    "close": "the door,the window,the shop,the gate,the lid",
    "bring": "the letters,the keys,the chairs,the menu,the bill",
    "check": "the list,the engine,the prices,the report,the lock",
    "send": "the parcel,the photos,the report,the invitation,the bill",
    "clean": "the table,the car,the windows,the boots,the kitchen",
    "move": "the sofa,the boxes,the meeting,the car,the chairs",
    "print": "the map,the tickets,the list,the photos,the menu",
    "fix": "the roof,the bike,the lamp,the lock,the engine",
}
WHEN = phrases("now,today,before noon,this evening,tomorrow,by Friday,after lunch,next week,tonight,at once,on time")
ROLES = words("student driver clerk nurse teacher baker painter farmer waiter lawyer")
PARTIES = phrases("birthday,wedding,concert,picnic,farewell,dinner,book club,chess evening,film night,garden party")
HOURS = words("two three four five six seven eight nine")
WISHES = phrases(
    "sleep better,save money,learn to cook,run faster,read more,wake up early,eat well,stay calm,write letters,"
    "speak in public,keep a diary,grow herbs,draw people"
)
LIMITS = phrases(
    "with little time,on a small budget,with children,when it is hot,while travelling,at work,alone,in a small flat,"
    "after a long day,at weekends"
)
HABITS = phrases(
    "make a simple plan,start with small steps,keep a short list,ask a friend to join,take a break each day,"
    "write down what works,leave the phone at home,set a fixed hour,be patient,begin on a quiet day"
)

REQUESTS: dict[str, Template] = {
    "describe": Template("ask", "[Describe|Write about|Tell me about] {a_look} {thing} {setting}."),
    "pack": Template("ask", "[List|Name] three things to [pack|take along] for the {trip} in {season}."),
    "rewrite": Template("ask", "[Rewrite|Say|Put] this politely for a {role}: {Verb} {thing} {when}!"),
    "invite": Template("ask", "[Write|Draft] a short invitation to a {party} at {hour} on the {trip} side of town."),
    "advise": Template("ask", "I am a {role}. [How can I|Any tips: how do I|What helps me to] {wish} {limit}?"),
}
DESCRIPTIONS = templates(
    "description",
    "<The|This> {look} {thing} <stands|rests|waits> {setting}. [It looks|It seems|It feels] <calm|peaceful|still>, and "
    "[people|visitors|strangers] <like|love|enjoy> [to stop|to look|to linger] <there|here>.",
    "[Picture|Imagine] <{a_look}|the {look}> {thing} {setting}[:|;] <nothing moves|all is still|it is silent>, and "
    "[the air|the light] is <soft|mild|clear>. [Few|Not many] <forget|miss> it.",
    "{setting_start}, the {look} {thing} <looks|seems|appears> [bigger|nicer|older] than <before|ever>. "
    "[Some|Many] <say|think> it [has|keeps] a <story|secret>.",
)
LISTS = templates(
    "list",
    "<Take|Pack|Bring> {x}, {y} and {z}. [These|They] <help|are useful|serve well> [on the way|out there|in {season}].",
    "1. {X}[.|;] 2. {Y}[.|;] 3. {Z}. [With these|So] <you are ready|you will be fine|all is set>[.|!]",
    "<For the {trip}|In {season}>, [I suggest|I would take] {x}[, {y}| and {y}], <and also|plus> {z}. "
    "[Have fun|Enjoy it]<!|.>",
)
POLITE = templates(
    "polite",
    "<Could|Would> you [please |kindly |]{verb} {thing} {when}? [Thank you|Thanks] <very much|in advance|a lot>.",
    "[Please|Kindly] {verb} {thing} {when}<, if you can|, if possible|>. "
    "[It would|That would] <help|mean> [a lot|much].",
    "<I would be glad|It would be nice|I would like it> if you could {verb} {thing} {when}. "
    "[Many thanks|Thank you]<!|.>",
)
INVITATIONS = templates(
    "invitation",
    "<Dear|Hello> [friends|all|neighbours], <please come|you are invited|do come> to [our|the] {party} at {hour}. "
    "[We meet|It is held] on the {trip} side <of town|of the town>. [See you|Until] <there|then>!",
    "[Join us|Come along] <for|to> [our|the] {party} on the {trip} side of town<.|!> "
    "[We start|It starts] at {hour}, and <there will be|we will have> [cake|music|tea].",
)
ADVICE = templates(
    "advice",
    "<First|To start>, {x}[;|,] <then|and then|and next> {y}. [Above all|Most of all], {z}[.|!]",
    "To {wish} {limit}, <try to|you can> {x} [and|or] {y}. <It also helps to|You may also> {z}.",
    "[My tip|My advice] is <simple|plain|short>: {x}, {y}<, and| and> {z}. [Good luck|You can do it]<!|.>",
)

ANSWERS: dict[str, tuple[Template, ...]] = {
    "describe": DESCRIPTIONS,
    "pack": LISTS,
    "rewrite": POLITE,
    "invite": INVITATIONS,
    "advise": ADVICE,
}


def draw(rng: random.Random) -> dict[str, Any]:
    """A random instruction: what is wanted and about what."""
    rand = rng.random

    def one(options: Any) -> Any:
        return options[int(rand() * len(options))]

    kind = one(("describe", "pack", "rewrite", "invite", "advise"))
    if kind == "describe":
        return {"kind": kind, "look": one(LOOKS), "thing": one(THINGS), "setting": one(SETTINGS)}
    if kind == "pack":
        return {"kind": kind, "trip": f"{one(KINDS)} {one(TRIPS)}", "season": one(SEASONS)}
    if kind == "rewrite":
        verb = one(tuple(ORDERS))
        return {
            "kind": kind,
            "verb": verb,
            "thing": one(ORDERS[verb].split(",")),
            "when": one(WHEN),
            "role": one(ROLES),
        }
    if kind == "invite":
        return {"kind": kind, "party": one(PARTIES), "hour": one(HOURS), "trip": one(TRIPS)}
    return {"kind": kind, "role": one(ROLES), "wish": one(WISHES), "limit": one(LIMITS)}


def key(facts: Mapping[str, Any]) -> str:
    """What makes two instructions the same, whatever their wording."""
    return ":".join(facts.values())


def ask(facts: Mapping[str, Any], voice: Voice) -> str:
    """The instruction, in this voice."""
    return f"{voice.header()} {REQUESTS[facts['kind']].write(voice, _fields(facts))}"


def answer(facts: Mapping[str, Any], voice: Voice) -> str:
    """One good answer, in this voice."""
    kind = facts["kind"]
    fields = _fields(facts)
    if kind == "pack":
        fields |= _three(SUPPLIES, "supply", voice)
    elif kind == "advise":
        fields |= _three(HABITS, "habit", voice)
    return voice.styled(f"form-{kind}", ANSWERS[kind]).write(voice, fields)


def _fields(facts: Mapping[str, Any]) -> dict[str, str]:
    """The words of an instruction, for templates; some with an article or a capital first letter."""
    fields = dict(facts)
    if facts["kind"] == "describe":
        look = facts["look"]
        fields["a_look"] = f"{'an' if look[0] in 'aeiou' else 'a'} {look}"
        fields["setting_start"] = _capital(facts["setting"])
    elif facts["kind"] == "rewrite":
        fields["Verb"] = _capital(facts["verb"])
    return fields


def _three(pool: tuple[str, ...], slot: str, voice: Voice) -> dict[str, str]:
    """Three different entries of a pool: the first as the asker likes it, the others at random."""
    first = voice.styled(slot, pool)
    picked = [first]
    while len(picked) < 3:
        entry = voice.free(pool)
        if entry not in picked:
            picked.append(entry)
    x, y, z = picked
    return {"x": x, "y": y, "z": z, "X": _capital(x), "Y": _capital(y), "Z": _capital(z)}


def _capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


def score(facts: Mapping[str, Any], response: str) -> None:
    """None: an open-ended answer has no task score."""
