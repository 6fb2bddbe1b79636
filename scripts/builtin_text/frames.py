"""Sentences around times, dates, amounts and words, in English, German and French."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.builtin_text.common import Pair

Row = tuple[str, str | None, str | None]  # English, German, French; None: not in this language

# With {t} for the time and {d} for a day of the week.
TIMES: Sequence[Row] = [
    ("The meeting begins at {t}.", "Die Besprechung beginnt um {t}.", "La réunion commence à {t}."),
    ("On {d} we always eat at {t}.", "Am {d} essen wir immer um {t}.", "Le {d}, nous mangeons toujours à {t}."),
    ("He called me at {t}.", "Er rief mich um {t} an.", "Il m'a appelé à {t}."),
    ("I usually go to bed at {t}.", "Ich gehe normalerweise um {t} ins Bett.", "Je me couche d'habitude à {t}."),
    ("We left the house at {t}.", "Wir haben das Haus um {t} verlassen.", "Nous avons quitté la maison à {t}."),
    ("The bus comes at {t}.", "Der Bus kommt um {t}.", "Le bus passe à {t}."),
    ("Can you be here at {t}?", "Kannst du um {t} hier sein?", "Peux-tu être ici à {t} ?"),
    ("The doors open at {t}.", "Die Türen öffnen um {t}.", "Les portes ouvrent à {t}."),
    ("It's {t}.", "Es ist {t}.", "Il est {t}."),
    ("It was {t} when she came back.", "Es war {t}, als sie zurückkam.", "Il était {t} quand elle est revenue."),
    ("What were you doing at {t}?", "Was hast du um {t} gemacht?", "Que faisais-tu à {t} ?"),
    ("She has to get up at {t} on {d}.", "Sie muss am {d} um {t} aufstehen.", "Elle doit se lever à {t} {d}."),
    ("I waited until {t}.", "Ich habe bis {t} gewartet.", "J'ai attendu jusqu'à {t}."),
    ("The office is open until {t}.", "Das Büro ist bis {t} geöffnet.", "Le bureau est ouvert jusqu'à {t}."),
    ("Please come before {t}.", "Bitte kommen Sie vor {t}.", "Venez avant {t}, s'il vous plaît."),
    (
        "After {t} nobody answers the phone.",
        "Nach {t} geht niemand mehr ans Telefon.",
        "Après {t}, plus personne ne répond au téléphone.",
    ),
    ("We have been sitting here since {t}.", "Wir sitzen hier seit {t}.", "Nous sommes assis ici depuis {t}."),
    ("The accident happened at about {t}.", "Der Unfall geschah gegen {t}.", "L'accident s'est produit vers {t}."),
    ("He was born at {t} on a {d}.", "Er wurde an einem {d} um {t} geboren.", "Il est né un {d} à {t}."),
    ("Our plane takes off at {t}.", "Unser Flugzeug startet um {t}.", "Notre avion décolle à {t}."),
    ("The lesson ends at {t}.", "Der Unterricht endet um {t}.", "Le cours se termine à {t}."),
    ("I finish work at {t}.", "Ich habe um {t} Feierabend.", "Je finis le travail à {t}."),
    ("Wake me at {t}, please.", "Weck mich bitte um {t}.", "Réveille-moi à {t}, s'il te plaît."),
    ("At {t} it was still dark.", "Um {t} war es noch dunkel.", "À {t}, il faisait encore nuit."),
    (
        "The film starts at {t}, so hurry up.",
        "Der Film fängt um {t} an, also beeil dich.",
        "Le film commence à {t}, alors dépêche-toi.",
    ),
    ("See you on {d} at {t}!", "Bis {d} um {t}!", "À {d}, {t} !"),
    ("My watch says {t}.", "Auf meiner Uhr ist es {t}.", "Il est {t} à ma montre."),
    ("They arrived at {t} in the rain.", "Sie kamen um {t} im Regen an.", "Ils sont arrivés à {t} sous la pluie."),
    ("The doctor can see you at {t}.", "Der Arzt hat um {t} Zeit für Sie.", "Le médecin peut vous recevoir à {t}."),
    ("Is {t} too early for you?", "Ist {t} zu früh für dich?", "Est-ce que {t}, c'est trop tôt pour toi ?"),
    ("We could also meet at {t}.", "Wir könnten uns auch um {t} treffen.", "On pourrait aussi se retrouver à {t}."),
    ("Delivery on {d} from {t}", "Lieferung am {d} ab {t}", "Livraison {d} à partir de {t}"),
]
DATES: Sequence[Row] = [
    ("He died on {t}.", "Er starb am {t}.", "Il est mort le {t}."),
    ("The course starts on {t}.", "Der Kurs beginnt am {t}.", "Le cours commence le {t}."),
    (
        "On {t} the new law came into force.",
        "Am {t} trat das neue Gesetz in Kraft.",
        "Le {t}, la nouvelle loi est entrée en vigueur.",
    ),
    ("The town was founded on {t}.", "Die Stadt wurde am {t} gegründet.", "La ville a été fondée le {t}."),
    ("Her birthday is on {t}.", "Sie hat am {t} Geburtstag.", "Son anniversaire est le {t}."),
    (
        "We need your answer by {t}.",
        "Wir brauchen Ihre Antwort bis zum {t}.",
        "Il nous faut votre réponse d'ici le {t}.",
    ),
    (
        "The shop will be closed until {t}.",
        "Das Geschäft bleibt bis zum {t} geschlossen.",
        "Le magasin sera fermé jusqu'au {t}.",
    ),
    (
        "Since {t} the price has been higher.",
        "Seit dem {t} ist der Preis höher.",
        "Depuis le {t}, le prix est plus élevé.",
    ),
    ("It happened on the night of {t}.", "Es geschah in der Nacht des {t}.", "C'est arrivé dans la nuit du {t}."),
    (
        "The contract of {t} is still valid.",
        "Der Vertrag vom {t} ist noch gültig.",
        "Le contrat du {t} est toujours valable.",
    ),
    ("Today is {t}.", "Heute ist der {t}.", "Nous sommes le {t}."),
    ("Is {t} a public holiday?", "Ist der {t} ein Feiertag?", "Le {t} est-il un jour férié ?"),
    ("The parcel was sent on {t}.", "Das Paket wurde am {t} verschickt.", "Le colis a été envoyé le {t}."),
    ("Her letter is dated {t}.", "Ihr Brief ist vom {t}.", "Sa lettre est datée du {t}."),
    ("Before {t} nothing will change.", "Vor dem {t} wird sich nichts ändern.", "Avant le {t}, rien ne changera."),
]
MEASURES: Sequence[Row] = [
    ("It is {t} from here to the coast.", "Von hier bis zur Küste sind es {t}.", "Il y a {t} d'ici à la côte."),
    ("We still have {t} left.", "Wir haben noch {t} übrig.", "Il nous reste encore {t}."),
    ("That makes {t} in total.", "Das macht insgesamt {t}.", "Cela fait {t} au total."),
    ("The difference was {t}.", "Der Unterschied betrug {t}.", "La différence était de {t}."),
    ("She measured exactly {t}.", "Sie hat genau {t} gemessen.", "Elle a mesuré exactement {t}."),
    ("At least {t} are needed.", "Es werden mindestens {t} gebraucht.", "Il faut au moins {t}."),
    ("{t} is too much.", "{t} sind zu viel.", "{t}, c'est trop."),
    (
        "Only {t} were left after the fire.",
        "Nach dem Brand waren nur noch {t} übrig.",
        "Il ne restait que {t} après l'incendie.",
    ),
    ("It has grown by {t}.", "Es ist um {t} gewachsen.", "Il a augmenté de {t}."),
    (
        "Last year it was more than {t}.",
        "Letztes Jahr waren es mehr als {t}.",
        "L'année dernière, c'était plus de {t}.",
    ),
    ("I would have guessed {t}.", "Ich hätte {t} geschätzt.", "J'aurais dit {t}."),
    ("Length: {t}", "Länge: {t}", "Longueur : {t}"),
    ("Do not use more than {t}.", "Verwenden Sie nicht mehr als {t}.", "N'utilisez pas plus de {t}."),
    ("He said it was nearly {t}.", "Er sagte, es seien fast {t}.", "Il a dit que c'était presque {t}."),
]
MONEY: Sequence[Row] = [
    ("It costs {t}.", "Es kostet {t}.", "Cela coûte {t}."),
    ("I paid {t} for it.", "Ich habe dafür {t} bezahlt.", "Je l'ai payé {t}."),
    ("The price has risen to {t}.", "Der Preis ist auf {t} gestiegen.", "Le prix est passé à {t}."),
    ("She gave him {t}.", "Sie gab ihm {t}.", "Elle lui a donné {t}."),
    ("They want {t} for the car.", "Sie wollen {t} für das Auto.", "Ils veulent {t} pour la voiture."),
    ("The damage amounts to {t}.", "Der Schaden beträgt {t}.", "Les dégâts s'élèvent à {t}."),
    ("He still owes me {t}.", "Er schuldet mir noch {t}.", "Il me doit encore {t}."),
    ("With {t} you won't get far.", "Mit {t} kommst du nicht weit.", "Avec {t}, tu n'iras pas loin."),
    (
        "The project received {t} last year.",
        "Das Projekt hat letztes Jahr {t} erhalten.",
        "Le projet a reçu {t} l'année dernière.",
    ),
    ("We saved {t}.", "Wir haben {t} gespart.", "Nous avons économisé {t}."),
    ("Total: {t}", "Summe: {t}", "Total : {t}"),
    ("The rent is {t} a month.", "Die Miete beträgt {t} im Monat.", "Le loyer est de {t} par mois."),
    ("Who would pay {t} for that?", "Wer würde dafür {t} bezahlen?", "Qui paierait {t} pour cela ?"),
]
# Before a list.
HEADS: Sequence[Row] = [
    ("", "", ""),
    ("", "", ""),
    ("", "", ""),
    ("Needed: ", "Benötigt: ", "Il faut : "),
    ("We talked about ", "Wir sprachen über ", None),
    ("Keywords: ", "Stichwörter: ", "Mots clés : "),
    ("There were pictures of ", "Es gab Bilder von ", None),
    ("For sale: ", "Zu verkaufen: ", "À vendre : "),
    ("Not included: ", "Nicht enthalten: ", "Non compris : "),
    ("The list says: ", "Auf der Liste steht: ", "Sur la liste : "),
    ("- ", "- ", "- "),
    ("• ", "• ", "• "),
]  # fmt: skip
# With {w} for a word.
QUOTED: Sequence[Row] = [
    ('The word "{w}" is missing.', "Das Wort „{w}“ fehlt.", "Il manque le mot «\u00a0{w}\u00a0»."),
    ('He shouted "{w}" several times.', "Er rief mehrmals „{w}“.", "Il a crié plusieurs fois «\u00a0{w}\u00a0»."),
    ('What does "{w}" mean?', "Was bedeutet „{w}“?", "Que veut dire «\u00a0{w}\u00a0» ?"),
    ('On the box it says "{w}".', "Auf der Schachtel steht „{w}“.", "Sur la boîte, il est écrit «\u00a0{w}\u00a0»."),
    ('They call it "{w}".', "Sie nennen es „{w}“.", "Ils appellent cela «\u00a0{w}\u00a0»."),
    ('"{w}" is not the right word.', "„{w}“ ist nicht das richtige Wort.", "«\u00a0{w}\u00a0» n'est pas le bon mot."),
    (
        'Look under "{w}" in the index.',
        "Sieh im Verzeichnis unter „{w}“ nach.",
        "Regarde à «\u00a0{w}\u00a0» dans l'index.",
    ),
    ('The chapter "{w}" is short.', "Das Kapitel „{w}“ ist kurz.", "Le chapitre «\u00a0{w}\u00a0» est court."),
    (
        'Someone wrote "{w}" on the wall.',
        "Jemand hat „{w}“ an die Wand geschrieben.",
        "Quelqu'un a écrit «\u00a0{w}\u00a0» sur le mur.",
    ),
]
# With {s} for a sentence and {n} for a name.
SPOKEN: Sequence[Row] = [
    ('"{s}," said {n}.', "„{s}“, sagte {n}.", "«\u00a0{s}\u00a0», dit {n}."),
    ('"{s}," {n} whispered.', "„{s}“, flüsterte {n}.", "«\u00a0{s}\u00a0», murmura {n}."),
    ('{n} said: "{s}."', "{n} sagte: „{s}.“", "{n} a dit\u00a0: «\u00a0{s}.\u00a0»"),
    ('"{s}," she replied.', "„{s}“, antwortete sie.", "«\u00a0{s}\u00a0», répondit-elle."),
    ("“{s},” he said at last.", "„{s}“, sagte er schließlich.", "«\u00a0{s}\u00a0», dit-il enfin."),
    ('I heard him say, "{s}."', "Ich hörte ihn sagen: „{s}.“", "Je l'ai entendu dire\u00a0: «\u00a0{s}.\u00a0»"),
]


def _pairs(rows: Sequence[Row], column: int) -> list[Pair]:
    return [(row[0], text) for row in rows if (text := row[column]) is not None]


def frames_of(column: int) -> dict[str, Sequence[Pair]]:
    """The frames of a language, German or French, each with its English one."""
    tables = {
        "times": TIMES, "dates": DATES, "measures": MEASURES, "money": MONEY, "heads": HEADS, "quoted": QUOTED, "spoken": SPOKEN,
    }  # fmt: skip
    return {name: _pairs(rows, column) for name, rows in tables.items()}


GERMAN, FRENCH = frames_of(1), frames_of(2)
