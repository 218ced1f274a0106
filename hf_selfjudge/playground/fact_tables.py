"""The closed world of facts that the multiple-choice questions ask about, as plain tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from .wording import phrases


@dataclass(frozen=True)
class Relation:
    """One kind of fact: subjects, their answers, and ways to ask for them and to state them."""

    name: str
    """Short name, unique."""
    questions: tuple[str, ...]
    """Ways to ask, with `{s}` for the subject."""
    statements: tuple[str, ...]
    """Ways to state the fact inside a sentence, with `{s}` and `{a}` (or `{an}`, with its article)."""
    pairs: tuple[tuple[str, str], ...]
    """Subject and answer of every fact."""
    lookup: dict[str, str] = field(init=False)
    """Answer by subject."""
    answers: tuple[str, ...] = field(init=False)
    """The distinct answers, from which wrong options are drawn."""

    def __post_init__(self) -> None:
        """Check the table and index it."""
        object.__setattr__(self, "lookup", dict(self.pairs))
        object.__setattr__(self, "answers", tuple(dict.fromkeys(answer for _, answer in self.pairs)))
        if len(self.lookup) != len(self.pairs):
            raise ValueError(f"relation {self.name!r} names a subject twice; every subject needs one answer")
        if len(self.answers) < 4:
            raise ValueError(f"relation {self.name!r} has {len(self.answers)} answers; a question needs 4 options")


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Read `subject=answer, subject=answer, ...`."""
    return tuple((entry.split("=")[0], entry.split("=")[1]) for entry in phrases(text))


def _rows(text: str) -> tuple[tuple[str, ...], ...]:
    """Read a table with one line per row and commas between the columns."""
    return tuple(phrases(line) for line in text.strip().splitlines())


# Country: capital, continent, language, currency.
_COUNTRIES = _rows(
    """
    France, Paris, Europe, French, euro
    Japan, Tokyo, Asia, Japanese, yen
    Egypt, Cairo, Africa, Arabic, pound
    Peru, Lima, South America, Spanish, sol
    Brazil, Brasilia, South America, Portuguese, real
    Kenya, Nairobi, Africa, Swahili, shilling
    India, New Delhi, Asia, Hindi, rupee
    China, Beijing, Asia, Mandarin, yuan
    Norway, Oslo, Europe, Norwegian, krone
    Sweden, Stockholm, Europe, Swedish, krona
    Poland, Warsaw, Europe, Polish, zloty
    Hungary, Budapest, Europe, Hungarian, forint
    Turkey, Ankara, Asia, Turkish, lira
    Thailand, Bangkok, Asia, Thai, baht
    Vietnam, Hanoi, Asia, Vietnamese, dong
    Mexico, Mexico City, North America, Spanish, peso
    Cuba, Havana, North America, Spanish, peso
    Canada, Ottawa, North America, English, dollar
    Chile, Santiago, South America, Spanish, peso
    Greece, Athens, Europe, Greek, euro
    Italy, Rome, Europe, Italian, euro
    Spain, Madrid, Europe, Spanish, euro
    Germany, Berlin, Europe, German, euro
    Austria, Vienna, Europe, German, euro
    Portugal, Lisbon, Europe, Portuguese, euro
    Finland, Helsinki, Europe, Finnish, euro
    Denmark, Copenhagen, Europe, Danish, krone
    Iceland, Reykjavik, Europe, Icelandic, krona
    Romania, Bucharest, Europe, Romanian, leu
    Bulgaria, Sofia, Europe, Bulgarian, lev
    Morocco, Rabat, Africa, Arabic, dirham
    Ghana, Accra, Africa, English, cedi
    Nigeria, Abuja, Africa, English, naira
    Ethiopia, Addis Ababa, Africa, Amharic, birr
    Mongolia, Ulaanbaatar, Asia, Mongolian, tugrik
    Nepal, Kathmandu, Asia, Nepali, rupee
    Iran, Tehran, Asia, Persian, rial
    Georgia, Tbilisi, Asia, Georgian, lari
    Australia, Canberra, Oceania, English, dollar
    Fiji, Suva, Oceania, Fijian, dollar
    """
)


def _country(column: int) -> tuple[tuple[str, str], ...]:
    """Country and one column of the table above."""
    return tuple((row[0], row[column]) for row in _COUNTRIES)


_ALL = (
    Relation(
        "capital",
        ("What is the capital of {s}?", "Which city is the capital of {s}?", "{s} has which capital city?"),
        ("the capital of {s} is {a}", "{a} is the capital of {s}", "{s} has {a} as its capital"),
        _country(1),
    ),
    Relation(
        "continent",
        ("On which continent is {s}?", "Where in the world is {s}?", "To which continent does {s} belong?"),
        ("{s} is in {a}", "{s} lies in {a}", "{s} belongs to {a}"),
        _country(2),
    ),
    Relation(
        "language",
        ("Which language is spoken in {s}?", "What do most people speak in {s}?", "What is the main language of {s}?"),
        ("people in {s} speak {a}", "{a} is spoken in {s}", "the language of {s} is {a}"),
        _country(3),
    ),
    Relation(
        "currency",
        ("What is the currency of {s}?", "Which money is used in {s}?", "With what do people pay in {s}?"),
        ("the currency of {s} is the {a}", "{s} uses the {a}", "people in {s} pay with the {a}"),
        _country(4),
    ),
    Relation(
        "symbol",
        ("What is the chemical symbol of {s}?", "Which symbol stands for {s}?", "How is {s} written in chemistry?"),
        ("the symbol of {s} is {a}", "{a} stands for {s}", "{s} is written {a}"),
        _pairs(
            "iron=Fe, gold=Au, silver=Ag, copper=Cu, tin=Sn, lead=Pb, zinc=Zn, sodium=Na, potassium=K, helium=He, "
            "neon=Ne, argon=Ar, carbon=C, oxygen=O, nitrogen=N, hydrogen=H, sulfur=S, calcium=Ca, magnesium=Mg, "
            "nickel=Ni, cobalt=Co, mercury=Hg, iodine=I, chlorine=Cl, silicon=Si, boron=B, lithium=Li, radium=Ra, "
            "uranium=U, platinum=Pt"
        ),
    ),
    Relation(
        "author",
        ("Who wrote {s}?", "Which author wrote {s}?", "{s} was written by whom?"),
        ("{s} was written by {a}", "{a} wrote {s}", "the author of {s} is {a}"),
        _pairs(
            "Emma=Austen, Hamlet=Shakespeare, Ulysses=Joyce, Dracula=Stoker, Frankenstein=Shelley, Middlemarch=Eliot, "
            "Moby Dick=Melville, Walden=Thoreau, Candide=Voltaire, Faust=Goethe, Inferno=Dante, Don Quixote=Cervantes, "
            "War and Peace=Tolstoy, The Idiot=Dostoevsky, The Trial=Kafka, The Stranger=Camus, Nausea=Sartre, "
            "Jane Eyre=Bronte, Oliver Twist=Dickens, Kim=Kipling, Dune=Herbert, Beloved=Morrison, Heidi=Spyri, "
            "Siddhartha=Hesse, Peer Gynt=Ibsen, Les Miserables=Hugo, Treasure Island=Stevenson, Lolita=Nabokov, "
            "The Hobbit=Tolkien, Animal Farm=Orwell"
        ),
    ),
    Relation(
        "young",
        ("What is a young {s} called?", "What do we call the young of the {s}?", "Which word means a baby {s}?"),
        ("a young {s} is called a {a}", "a {a} is a young {s}", "the young of the {s} is the {a}"),
        _pairs(
            "cat=kitten, dog=puppy, cow=calf, horse=foal, sheep=lamb, goat=kid, pig=piglet, duck=duckling, "
            "goose=gosling, "
            "swan=cygnet, deer=fawn, bear=cub, frog=tadpole, kangaroo=joey, chicken=chick, hare=leveret, fox=kit, "
            "seal=pup, salmon=smolt, butterfly=caterpillar"
        ),
    ),
    Relation(
        "class",
        ("What kind of animal is a {s}?", "A {s} is what kind of animal?", "To which group does the {s} belong?"),
        ("the {s} is a kind of {a}", "a {s} counts as {an}", "the {s} belongs to the {a} group"),
        _pairs(
            "whale=mammal, bat=mammal, mouse=mammal, camel=mammal, tiger=mammal, sparrow=bird, penguin=bird, "
            "raven=bird, "
            "heron=bird, parrot=bird, shark=fish, trout=fish, tuna=fish, carp=fish, herring=fish, lizard=reptile, "
            "turtle=reptile, python=reptile, gecko=reptile, cobra=reptile, toad=amphibian, newt=amphibian, "
            "salamander=amphibian, beetle=bug, moth=bug, wasp=bug, cricket=bug, crab=crustacean, lobster=crustacean, "
            "shrimp=crustacean"
        ),
    ),
    Relation(
        "opposite",
        ("What is the opposite of {s}?", "Which word means the opposite of {s}?", "Which word is opposite to {s}?"),
        ("the opposite of {s} is {a}", "{a} is the opposite of {s}", "{s} and {a} are opposites"),
        _pairs(
            "hot=cold, tall=short, fast=slow, early=late, light=dark, wet=dry, rich=poor, loud=quiet, hard=soft, "
            "empty=full, young=old, sharp=blunt, thick=thin, wide=narrow, deep=shallow, brave=timid, clean=dirty, "
            "cheap=costly, smooth=rough, sweet=sour, strong=weak, near=far, open=shut, common=rare"
        ),
    ),
    Relation(
        "tool",
        ("Which tool does a {s} use most?", "What does a {s} work with?", "A {s} needs which tool?"),
        ("a {s} works with {an}", "the tool of a {s} is {an}", "a {s} uses {an}"),
        _pairs(
            "carpenter=saw, painter=brush, farmer=plough, gardener=spade, barber=razor, sculptor=chisel, miner=pick, "
            "fisher=net, cook=ladle, writer=pen, drummer=stick, sailor=compass, weaver=loom, potter=wheel, "
            "doctor=thermometer, "
            "judge=gavel, teacher=blackboard, tailor=needle, butcher=cleaver, blacksmith=hammer, mason=trowel, "
            "hunter=bow, "
            "cashier=till, pilot=radio, lumberjack=axe"
        ),
    ),
)

RELATIONS: dict[str, Relation] = {relation.name: relation for relation in _ALL}
TWO_HOP: tuple[str, ...] = ("continent", "language", "currency")
"""Relations that can also be asked through the country's capital."""
