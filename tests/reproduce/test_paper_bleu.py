"""Tokenised BLEU and split compounds, beside sacremoses's tokens and what papers report."""

from __future__ import annotations

import pytest

from regard.reproduce.paper_bleu import moses_tokens, paper_scores, split_compounds

# Lines of newstest2014 and 2013, and what sacremoses 0.2.0 makes of them (escape=False, after replace-unicode-punctuation).
SACREMOSES = [
    (
        "de",
        "„Mitte des 20. Jahrhunderts nannte man das einen ,psychiatrischen Notfall‘“, sagte Drescher.",
        '„ Mitte des 20. Jahrhunderts nannte man das einen , psychiatrischen Notfall ‘ " , sagte Drescher .',
    ),
    (
        "de",
        "„Er ist ganz ohne Zweifel ein Held“, sagt O'Malley.",
        "„ Er ist ganz ohne Zweifel ein Held \" , sagt O ' Malley .",
    ),
    (
        "de",
        "„Die Stadt ist definitiv in der Comedy-DNA von Larrys gesamter Arbeit“, sagte Steinberg.",
        '„ Die Stadt ist definitiv in der Comedy-DNA von Larrys gesamter Arbeit " , sagte Steinberg .',
    ),
    (
        "de",
        "Wir können entscheiden, eine Region von (in letzter Konsequenz) Klein-England zu sein.",
        "Wir können entscheiden , eine Region von ( in letzter Konsequenz ) Klein-England zu sein .",
    ),
    (
        "de",
        "Seine Mutter, Donna, 30, sagte: „Fenton und Toffee sind ein großartiges Gespann.“",
        'Seine Mutter , Donna , 30 , sagte : „ Fenton und Toffee sind ein großartiges Gespann . "',
    ),
    (
        "de",
        "Peter Lau, Spezialist des technischen Rettungsteams, sagte: „Ruby hatte ein Riesenglück.“",
        'Peter Lau , Spezialist des technischen Rettungsteams , sagte : „ Ruby hatte ein Riesenglück . "',
    ),
    (
        "de",
        "Er streitet das ab, aber wir sagen: „Und ob er davon wusste.“",
        'Er streitet das ab , aber wir sagen : „ Und ob er davon wusste . "',
    ),
    (
        "de",
        "Er fügte hinzu: „Er konnte nicht mehr weiterfliegen, weshalb wir mit der Bitte um Hilfe kontaktiert wurden.“",
        'Er fügte hinzu : „ Er konnte nicht mehr weiterfliegen , weshalb wir mit der Bitte um Hilfe kontaktiert wurden . "',
    ),
    (
        "fr",
        "«\xa0Nous avons besoin d'un meilleur système\xa0», a-t-il déclaré.",
        "« Nous avons besoin d' un meilleur système » , a-t-il déclaré .",
    ),
    (
        "fr",
        "«\xa0Les adultes devraient pouvoir prendre leurs propres décisions à propos d'un genre légal\xa0», a-t-elle ajouté.",
        "« Les adultes devraient pouvoir prendre leurs propres décisions à propos d' un genre légal » , a-t-elle ajouté .",
    ),
    (
        "fr",
        "«\xa0Je suis aussi frustrée et irritée que n'importe qui\xa0», a-t-elle ajouté.",
        "« Je suis aussi frustrée et irritée que n' importe qui » , a-t-elle ajouté .",
    ),
    (
        "en",
        "In the past, he has appeared at the Christmas market in Dornhan and the Narrenzunft (Fool's Guild event).",
        "In the past , he has appeared at the Christmas market in Dornhan and the Narrenzunft ( Fool 's Guild event ) .",
    ),
    (
        "en",
        'Burfien puts this down to the process of secularisation: "God\'s voice is quiet, the world is loud".',
        'Burfien puts this down to the process of secularisation : " God \'s voice is quiet , the world is loud " .',
    ),
    (
        "en",
        '"It should be tasty, but this doesn\'t necessarily mean animal-based food," said Proctor.',
        '" It should be tasty , but this doesn \'t necessarily mean animal-based food , " said Proctor .',
    ),
]


@pytest.mark.parametrize(("language", "text", "tokens"), SACREMOSES)
def test_tokens_are_those_of_moses(language: str, text: str, tokens: str) -> None:
    assert moses_tokens(text, language) == tokens


def test_compounds_are_split_at_every_hyphen_within_a_word() -> None:
    assert split_compounds("Ost-West-Dialog - ein -Test") == "Ost ##AT##-##AT## West ##AT##-##AT## Dialog - ein -Test"


def test_what_each_score_counts() -> None:
    """Quotation marks stick to words in sacreBLEU's 13a; parts of a compound count once it is split."""
    references = ["Der Dialog „ruht“ seit dem 3. Mai in Wien."] * 2
    quotes = paper_scores(['Der Dialog "ruht" seit dem 3. Mai in Wien.'] * 2, references, "de", bootstrap=0)
    assert quotes.sacrebleu.score < quotes.tokenised.score < 100
    references = ["Der Ost-West-Nord-Süd-Dialog ruht seit dem Mai."] * 2
    parts = paper_scores(["Der Ost-West-Nord-Süd-Gipfel ruht seit dem Mai."] * 2, references, "de", bootstrap=0)
    assert parts.compounds is not None
    assert parts.tokenised.score < parts.compounds.score < 100
    assert "tok:13a" in parts.sacrebleu.signature and "compounds:split" in parts.compounds.signature
    assert len(parts.lines()) == 3


def test_only_german_has_its_compounds_split() -> None:
    assert paper_scores(["L'an 2000."] * 2, ["L'an 2000."] * 2, "fr", bootstrap=0).compounds is None
