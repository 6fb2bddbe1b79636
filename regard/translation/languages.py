"""Languages: names, codes, and which language a training file is in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.errors import UserError

_DROPPED = {"gz", "xz", "zst", "txt"}
_CODE = re.compile(r"[A-Za-z]{2,3}([-_]([A-Z]{2}|[A-Z][a-z]{3}|[0-9]{3}))?")
# Extensions of two or three letters that are not language codes.
_NO_CODES = frozenset(
    "bak bin bpe bz2 csv dat db dev dic doc ds dup eos fix gz hyp ids idx inf ini lc list log low lst map md mos new "
    "old ori out par pdf pre ps py raw ref rtf sgm sh snt sp spm src sum tab tar tc tex tgt tmp tok tmx trg tsv txt "
    "val voc wrd xls xml yml zip zst".split()
)
# ISO 639-1. Only these count after "-" or "_", as in train_en.txt.
_TWO_LETTERS = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)


def guess_language(path: Path, sample: Sequence[str]) -> str:
    """The language code of a file, from its name, else from a sample of its text."""
    code = _from_name(path) or _from_text(sample)
    if code is None:
        raise UserError(
            f"{path}: neither its name nor its text shows its language; name the files NAME.xx, "
            "or pass --set data.source=xx --set data.target=yy"
        )
    return code


def language_in_name(path: Path) -> str | None:
    """The language code that a file's name ends in, such as "de" in news.de.gz; None: it has none."""
    return _from_name(path)


def language_of_text(sample: Sequence[str]) -> str | None:
    """The language of a text if it is clear; None also where the package that classifies is not installed."""
    try:
        return _from_text(sample)
    except UserError:
        return None


def other_language(path: Path, language: str, other: str) -> str | None:
    """The language in a file's name if it certainly is not `language`: it is `other`, or both are ISO 639-1 codes; else None.

    >>> other_language(Path("news.fr.gz"), "de", "en"), other_language(Path("news.de-AT.xz"), "de", "en")
    ('fr', None)
    """
    if _ending(path) == other:  # also for labels that are not languages
        return other
    code = _from_name(path)
    if code is None:
        return None
    named, wanted = first_subtag(code), first_subtag(language)
    return code if named != wanted and {named, wanted} <= _TWO_LETTERS else None


def _ending(path: Path) -> str:
    """The extension of a file name, without compression suffixes and .txt."""
    parts = path.name.split(".")
    while len(parts) > 1 and parts[-1].lower() in _DROPPED:
        parts.pop()
    return parts[-1]


def _from_name(path: Path) -> str | None:
    last = _ending(path)
    if _CODE.fullmatch(last) and last.lower() not in _NO_CODES:
        return last
    *before, tail = re.split(r"[-_]", last)
    # "en-de" names a pair, not the language of this file.
    return tail if before and before[-1] not in _TWO_LETTERS and tail in _TWO_LETTERS else None


def _from_text(sample: Sequence[str]) -> str | None:
    lines = [line for line in sample if line.strip()][:200]
    if not lines:
        return None
    code, probability = classify("\n".join(lines))
    # On a long text the classifier is confident even for a language it does not know; then the lines disagree.
    agreeing = sum(len(line) for line in lines if classify(line)[0] == code)
    sure = probability > 0.9 and agreeing >= 0.7 * sum(map(len, lines))
    return code if sure else None


def is_in_other(sample: Sequence[str], language: str, other: str) -> bool:
    """Whether a text that should be in `language` is clearly in `other`. Only for languages that the classifier knows."""
    wanted, wrong = first_subtag(language), first_subtag(other)
    lines = [line for line in sample if line.strip()]
    if not lines or wanted == wrong or not {wanted, wrong} <= _TWO_LETTERS:
        return False
    try:
        # The text as a whole first, since line by line takes much longer and is hardly ever needed.
        return classify("\n".join(lines))[0] == wrong and _from_text(lines) == wrong
    except UserError:  # the package that classifies is not installed
        return False


def classify(text: str) -> tuple[str, float]:
    """The likeliest language of a text and its probability as the classifier has it, which is far too sure; `detection.py` has a
    calibrated one."""
    ranking = rank_languages(text)
    best = ranking[0][1]
    return ranking[0][0], 1.0 / sum(math.exp(score - best) for _, score in ranking)


def rank_languages(text: str) -> list[tuple[str, float]]:
    """The languages that the classifier knows, with their log-probabilities up to a constant, best first."""
    try:
        import py3langid  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            "recognising a language by its text needs one more package; run: pip install py3langid, "
            "or name the files NAME.xx"
        ) from None
    return [(str(code), float(score)) for code, score in py3langid.rank(text)]


_NAMES = dict(
    entry.split("=")
    for entry in (
        "af=Afrikaans ak=Akan am=Amharic ar=Arabic as=Assamese az=Azerbaijani be=Belarusian bg=Bulgarian bn=Bengali "
        "br=Breton bs=Bosnian ca=Catalan cs=Czech cy=Welsh da=Danish de=German ee=Ewe el=Greek en=English eo=Esperanto "
        "es=Spanish et=Estonian eu=Basque fa=Persian fi=Finnish fo=Faroese fr=French fy=Frisian ga=Irish gl=Galician "
        "gu=Gujarati ha=Hausa he=Hebrew hi=Hindi hr=Croatian ht=Haitian hu=Hungarian hy=Armenian id=Indonesian ig=Igbo "
        "is=Icelandic it=Italian ja=Japanese jv=Javanese ka=Georgian kk=Kazakh km=Khmer kn=Kannada ko=Korean ku=Kurdish "
        "ky=Kyrgyz la=Latin lb=Luxembourgish lg=Ganda ln=Lingala lo=Lao lt=Lithuanian lv=Latvian mg=Malagasy mi=Maori "
        "mk=Macedonian ml=Malayalam mn=Mongolian mr=Marathi ms=Malay mt=Maltese my=Burmese nb=Bokmål ne=Nepali nl=Dutch "
        "nn=Nynorsk no=Norwegian ny=Chichewa oc=Occitan or=Odia pa=Punjabi pl=Polish ps=Pashto pt=Portuguese qu=Quechua "
        "rm=Romansh ro=Romanian ru=Russian rw=Kinyarwanda sd=Sindhi si=Sinhala sk=Slovak sl=Slovenian sm=Samoan sn=Shona "
        "so=Somali sq=Albanian sr=Serbian st=Sotho su=Sundanese sv=Swedish sw=Swahili ta=Tamil te=Telugu tg=Tajik th=Thai "
        "tk=Turkmen tl=Tagalog tn=Tswana tr=Turkish ts=Tsonga tt=Tatar tw=Twi twi=Twi ug=Uyghur uk=Ukrainian ur=Urdu "
        "uz=Uzbek vi=Vietnamese wo=Wolof xh=Xhosa yi=Yiddish yo=Yoruba zh=Chinese zu=Zulu"
    ).split()
)


def first_subtag(code: str) -> str:
    """The language of a code, without script and region.

    >>> first_subtag("pt-BR"), first_subtag("DE_AT"), first_subtag("")
    ('pt', 'de', '')
    """
    return re.split("[-_]", code)[0].lower()


def language_name(code: str) -> str:
    """The English name of a language; the code itself if unknown, since models may use any label.

    >>> language_name("de"), language_name("pt-BR"), language_name("src")
    ('German', 'Portuguese (BR)', 'src')
    """
    first, _, region = code.replace("_", "-").partition("-")
    name = _NAMES.get(first.lower())
    if name is None:
        return code
    return f"{name} ({region})" if region else name


def match_code(wanted: str, known: Iterable[str]) -> str | None:
    """The known code that matches a client's: the same code in any case, else the only one of the same language; else None.

    >>> match_code("EN-GB", ["de", "en"]), match_code("pt", ["pt-BR"]), match_code("fr", ["de"])
    ('en', 'pt-BR', None)
    """
    exact = {_plain(code): code for code in known}
    if (code := exact.get(_plain(wanted))) is not None:
        return code
    alike = [code for plain, code in exact.items() if first_subtag(plain) == first_subtag(_plain(wanted))]
    return alike[0] if len(alike) == 1 else None


def _plain(code: str) -> str:
    return code.strip().replace("_", "-").lower()
