"""The kinds of event that the playground's news is about: their words, articles and summaries, as plain tables."""

from __future__ import annotations

from dataclasses import dataclass

from .wording import Template, templates, words

PLACES = words(
    """Northmere Eastvale Ashford Brackwater Coldridge Dunmoor Elmstead Fairhaven Glenrock Harwick Inverley Kingsbury
    Larkhill Marston Oakley Pinecrest Ravenna Stonebridge Thornbury Westport Wyndham Alderton Birchwood Cragmouth
    Deepwell Foxley Greenfield Hollowby Moorgate Saltmarsh"""
)
PEOPLE = words(
    """Okafor Lindgren Moreau Tanaka Petrov Silva Novak Haddad Kowalski Brandt Castillo Dubois Eriksen Farouk Gallo
    Hansen Ibrahim Jansen Keller Larsen Mendez Nakamura Olsen Pereira Rossi Schmidt Torres Vargas Weber Yilmaz"""
)
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


@dataclass(frozen=True)
class Event:
    """One kind of event: two counted things, two possible outcomes, and the texts about it.

    The texts may use `{place}`, `{day}`, `{person}`, `{first}`, `{second}` (the numbers) and `{outcome}`; articles use
    the outcome's name itself and summaries one of its synonyms.
    """

    name: str
    """Short name, unique."""
    first: tuple[str, tuple[int, int]]
    """What the first number counts, and the range it is drawn from."""
    second: tuple[str, tuple[int, int]]
    """The same for the second number."""
    outcomes: dict[str, Template]
    """Each outcome's name as the article has it, and its variants in a summary."""
    article: tuple[Template, ...]
    """The sentences of the article, in order; the reader learns all facts from them."""
    lead: tuple[Template, ...]
    """First sentences of a summary: place, day, first number and outcome, in whatever order."""
    detail: tuple[Template, ...]
    """Second sentences of a summary: the second number."""
    source: tuple[Template, ...]
    """Last sentences of a summary: who said so."""

    def __post_init__(self) -> None:
        """Check that the rules can tell the two counted things and the two outcomes apart."""
        if self.first[0] == self.second[0]:
            raise ValueError(f"event {self.name!r} counts {self.first[0]!r} twice; its two numbers need two units")
        words = [word for template in self.outcomes.values() for word in template.alternatives()]
        if len(self.outcomes) != 2 or len(set(words)) != len(words):
            raise ValueError(f"event {self.name!r} needs two outcomes with distinct words, got {words}")


def _event(
    name: str,
    first: tuple[str, tuple[int, int]],
    second: tuple[str, tuple[int, int]],
    outcomes: dict[str, str],
    article: tuple[str, ...],
    lead: tuple[str, ...],
    detail: tuple[str, ...],
    source: tuple[str, ...],
) -> Event:
    """An event from plain texts."""
    words = {label: Template(f"{name}-{label}", text) for label, text in outcomes.items()}
    return Event(
        name,
        first,
        second,
        words,
        templates(f"{name}-article", *article),
        templates(f"{name}-lead", *lead),
        templates(f"{name}-detail", *detail),
        templates(f"{name}-source", *source),
    )


_ALL = (
    _event(
        "vote",
        ("homes", (20, 480)),
        ("votes", (12, 60)),
        {"approved": "<approved|backed|passed>", "rejected": "<rejected|refused|blocked>"},
        (
            "The council of {place} [met|gathered] on {day} to discuss a plan for {first} new homes.",
            "After a long debate the plan was {outcome}.",
            "There were {second} votes on the winning side.",
            "[Councillor|Mayor] {person} called it a clear result.",
        ),
        (
            "On {day}, the <council|town council> of {place} {outcome} a [plan|scheme] for {first} <new |>homes.",
            "The {place} <council|town council> {outcome} a [plan|scheme|proposal] for {first} homes on {day}.",
            "A [plan|scheme] for {first} homes <in|at> {place} was {outcome} on {day}.",
        ),
        (
            "The winning side <had|got|won> {second} votes.",
            "[It took|It needed] {second} votes <to decide|to settle it>.",
        ),
        (
            "{person} <called|found> the result [clear|plain].",
            "It was a clear [result|outcome], <{person} said|said {person}>.",
        ),
    ),
    _event(
        "storm",
        ("houses", (30, 900)),
        ("people", (12, 400)),
        {"closed": "<closed|shut>", "open": "<open|running>"},
        (
            "A [strong|heavy] storm hit {place} on {day} and left {first} houses without power.",
            "About {second} people spent the night in a sports hall.",
            "{person} of the fire brigade said the schools are {outcome} for now.",
        ),
        (
            "A <storm|heavy storm> in {place} on {day} [left|put] {first} houses in the dark, and schools are "
            "{outcome}.",
            "On {day}, a storm <cut power to|knocked out power in> {first} houses in {place}[;|, and] schools "
            "are {outcome}.",
            "Schools in {place} are {outcome} after a storm on {day} <cut off|darkened> {first} houses.",
        ),
        (
            "<Around|Some> {second} people [slept|stayed] in a <sports hall|hall>.",
            "A sports hall <housed|took in> {second} people [overnight|for the night].",
        ),
        (
            "This <came|comes> from {person} of the [fire brigade|fire service].",
            "{person} <confirmed|reported> this [later|for the brigade].",
        ),
    ),
    _event(
        "match",
        ("fans", (150, 980)),
        ("minutes", (11, 89)),
        {"won": "<won|triumphed>", "lost": "<lost|were beaten>"},
        (
            "{first} fans came to see {place} United play at home on {day}.",
            "The home side {outcome} the match by a single goal.",
            "The goal fell after {second} minutes.",
            "[Coach|Manager] {person} said the team had given everything.",
        ),
        (
            "{place} United {outcome} <at home|in the home match> on {day} [before|in front of] {first} fans.",
            "On {day}, {first} fans <saw|watched> as {place} United {outcome}[.| at home.]",
            "<With|Before> {first} fans there, {place} United {outcome} on {day}[.| by one goal.]",
        ),
        (
            "The [only|single] goal <came|fell> after {second} minutes.",
            "After {second} minutes <the only goal fell|one goal decided it>.",
        ),
        (
            "{person} <praised|defended> the [team|side].",
            "The team gave [everything|all it had], <{person} said|said {person}>.",
        ),
    ),
    _event(
        "factory",
        ("jobs", (25, 850)),
        ("machines", (11, 95)),
        {"opens": "<opens|starts up>", "closes": "<closes|shuts down>"},
        (
            "[Good to know|Important] for workers in {place}: the {person} factory {outcome} on {day}.",
            "The decision [touches|affects] {first} jobs in the town.",
            "The plant has {second} machines and makes paper.",
            "A [union |]meeting [will follow|is planned] next week.",
        ),
        (
            "The {person} factory in {place} {outcome} on {day}, which <affects|touches|concerns> {first} jobs.",
            "On {day}, the {person} [plant|factory] {outcome} in {place}<, affecting| and this affects> {first} jobs.",
            "<Some|In all,> {first} jobs in {place} [are affected|are concerned] as the {person} plant "
            "{outcome} on {day}.",
        ),
        (
            "It <has|runs|owns> {second} machines [for|to make] paper.",
            "[Paper|The paper] is made there <on|with> {second} machines.",
        ),
        ("A <meeting|union meeting> [will follow|is planned].", "[Next week|A week later] <there is|comes> a meeting."),
    ),
    _event(
        "festival",
        ("visitors", (120, 990)),
        ("coins", (150, 950)),
        {"rose": "<rose|grew|went up>", "fell": "<fell|dropped|went down>"},
        (
            "The music festival of {place} [drew|attracted] {first} visitors on {day}.",
            "Compared with last year the number {outcome}.",
            "Stalls [collected|raised] {second} coins for the local clinic.",
            "{person}, who runs the festival, thanked everybody.",
        ),
        (
            "The <festival|music festival> in {place} [drew|had|attracted] {first} visitors on {day}, and the "
            "number {outcome}.",
            "On {day}, {first} visitors <came to|attended> the festival in {place}[;|, and] the number {outcome}.",
            "Visitor numbers {outcome} at the {place} <festival|music festival>[:|, as] {first} visitors came "
            "on {day}.",
        ),
        (
            "<Stalls|The stalls> [raised|collected] {second} coins for <the clinic|a clinic>.",
            "The clinic <gets|receives> {second} coins [from the stalls|raised there].",
        ),
        ("{person} <thanked|gave thanks to> [all|everybody].", "[All|Everyone] <got|received> thanks from {person}."),
    ),
    _event(
        "rescue",
        ("sailors", (11, 99)),
        ("hours", (2, 24)),
        {"safe": "<safe|unhurt|well>", "injured": "<injured|hurt|wounded>"},
        (
            "A ferry ran aground near {place} on {day} with {first} sailors on board.",
            "The rescue [took|lasted] {second} hours in rough seas.",
            "The crew is {outcome}, said {person} of the coast guard.",
        ),
        (
            "After a ferry [ran aground|got stuck] near {place} on {day}, its {first} sailors are <now |>{outcome}.",
            "A ferry <with|carrying> {first} sailors [ran aground|got stuck] near {place} on {day}, and they "
            "are {outcome}.",
            "<All|The> {first} sailors of a ferry that [ran aground|got stuck] near {place} on {day} are {outcome}.",
        ),
        (
            "The rescue <took|lasted|went on for> {second} hours.",
            "[It took|Rescuers needed] {second} hours <in rough seas|at sea>.",
        ),
        (
            "{person} <told|informed> the [press|public].",
            "The coast guard's {person} <said so|confirmed it>[.| later.]",
        ),
    ),
    _event(
        "dig",
        ("pots", (12, 320)),
        ("graves", (11, 75)),
        {"shown": "<shown|displayed>", "stored": "<stored|put away>"},
        (
            "Students [dug up|uncovered] {first} clay pots in a field near {place} on {day}.",
            "They also found {second} graves.",
            "The finds will be {outcome} [by the museum|in the museum], professor {person} explained.",
        ),
        (
            "On {day}, students <found|dug up> {first} [clay |old |]pots near {place}; the finds will be {outcome}.",
            "Students <found|dug up|unearthed> {first} pots near {place} on {day}[, and| and] the finds will be "
            "{outcome}.",
            "<Some|In all,> {first} pots [turned up|were found] near {place} on {day}, and they will be {outcome}.",
        ),
        (
            "<They also found|There were also> {second} graves[.| there.]",
            "[In addition|Besides], <{second} graves were found|they found {second} graves>.",
        ),
        (
            "{person} <explained|described> the [finds|decision].",
            "The [professor is|dig is led by] <{person}|one {person}>.",
        ),
    ),
    _event(
        "strike",
        ("drivers", (40, 900)),
        ("buses", (15, 240)),
        {"ended": "<ended|was settled>", "continues": "<continues|persists>"},
        (
            "The bus strike in {place} {outcome} on {day}, the city [said|announced].",
            "In all {first} drivers had [asked for|demanded] better pay.",
            "Because of it {second} buses stood still.",
            "{person} speaks for the drivers.",
        ),
        (
            "The strike of {first} <drivers|bus drivers> in {place} {outcome} on {day}.",
            "On {day}, the [bus |]strike in {place} {outcome}; {first} drivers <took part|joined it>[.| for "
            "better pay.]",
            "In {place}, the [bus |]strike by {first} drivers <for better pay|over pay> {outcome} on {day}.",
        ),
        (
            "<It idled|It held up> {second} buses[.| in town.]",
            "Some {second} buses <stood still|did not run> [because of it|as a result].",
        ),
        (
            "{person} <speaks|talks> for the [drivers|strikers].",
            "The [drivers'|strikers'] <speaker|voice> is {person}.",
        ),
    ),
)

EVENTS: dict[str, Event] = {event.name: event for event in _ALL}
