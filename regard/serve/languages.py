"""Languages of the models that are served: their names, how clients write their codes, and which one a text is in."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.data.language import classify

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


def language_name(code: str) -> str:
    """The English name of a language, else its code: labels of models are free.

    >>> language_name("de"), language_name("pt-BR"), language_name("src")
    ('German', 'Portuguese (BR)', 'src')
    """
    first, _, region = code.replace("_", "-").partition("-")
    name = _NAMES.get(first.lower())
    if name is None:
        return code
    return f"{name} ({region})" if region else name


def match_code(wished: str, known: Iterable[str]) -> str | None:
    """The known code that a client means: the same one in any case, else the one of the same language.

    >>> match_code("EN-GB", ["de", "en"]), match_code("pt", ["pt-BR"]), match_code("fr", ["de"])
    ('en', 'pt-BR', None)
    """
    exact = {_plain(code): code for code in known}
    if (code := exact.get(_plain(wished))) is not None:
        return code
    alike = [code for plain, code in exact.items() if plain.split("-")[0] == _plain(wished).split("-")[0]]
    return alike[0] if len(alike) == 1 else None


def _plain(code: str) -> str:
    return code.strip().replace("_", "-").lower()


def detect(text: str) -> tuple[str, float] | None:
    """The language that a text is most likely in and how sure that is, in per cent; None where there is nothing to go by."""
    if not re.search(r"[^\W\d_]", text):
        return None
    code, probability = classify(text[:5_000])
    return code, round(100 * probability, 1)
