"""BLEU as the paper's time counted it: on text in Moses's tokens and, for German, with compounds split at the hyphen, as
Tensor2Tensor's get_ende_bleu.sh does. Such scores are higher than sacreBLEU's, and differ between scripts; they are for comparison
with papers only.

The tokenizer follows the rules of Moses's tokenizer.perl with a shorter list of abbreviations; Moses's escapes (&quot;) are left
out, since they replace a token by another on both sides. Of the 3,003 German lines of newstest2014 it splits 2 otherwise than
sacremoses 0.2.0, a port of the script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.evaluate import Metric, score

COMPOUND = re.compile(r"(\S)-(?=\S)")
# replace-unicode-punctuation.perl
_PUNCTUATION = str.maketrans(
    {
        "，": ",", "。": ".", "、": ",", "”": '"', "“": '"', "∶": ":", "：": ":", "？": "?", "《": '"', "》": '"', "）": ")",
        "！": "!", "（": "(", "；": ";", "」": '"', "「": '"', "～": "~", "’": "'", "…": "...", "━": "-", "〈": "<", "〉": ">",
        "【": "[", "】": "]", "％": "%",
    }
)  # fmt: skip
_OTHER = re.compile(r"([^\w\s.'`,\-]|_)")
_DOTS = re.compile(r"\.{2,}")
_COMMA_AFTER, _COMMA_BEFORE = re.compile(r"(\D),"), re.compile(r",(\D)")
_LETTER = r"[^\W\d_]"
_APOSTROPHES = {
    "en": (rf"({_LETTER})'({_LETTER})", r"\1 '\2"),
    "fr": (rf"({_LETTER})'({_LETTER})", r"\1' \2"),
}
# Words whose full stop does not end a sentence; single letters and, in German, ordinal numbers come on top.
_ABBREVIATIONS = {
    "de": "Abs Abt Art Bd Bsp Co Corp Dipl Dr Fr Gebr Hr Hrsg Jan Feb Aug Sept Okt Nov Dez Jh Kap Ltd Maj Mio Mr Mrd Mrs Ms Nr "
    "Prof Sen Sr St Str Tel Univ bzw ca cf etc evtl exkl ggf inkl max min sog usw vgl vs zzgl I II III IV V VI VII VIII IX X",
    "en": "Adj Adm Adv Asst Brig Bros Capt Cmdr Col Corp Cpl Dr Gen Gov Hon Hosp Insp Jan Feb Aug Sept Oct Nov Dec Lt Maj Messrs "
    "Mlle Mme Mr Mrs Ms Msgr Op Prof Pvt Rep Reps Res Rev Sen Sens Sgt Sr St Supt v vs rev No Nos Art Nr pp",
    "fr": "MM Me Mgr Mme Mmes Mlle Mlles Mr art av bd boul cf chap env etc ex fig hab hon janv févr juill max min nos obs pl pp "
    "prof sec sept oct nov déc ste tél vol vs",
}  # fmt: skip


@dataclass(frozen=True)
class PaperScores:
    """The same translations, counted in three ways."""

    sacrebleu: Metric
    tokenised: Metric
    compounds: Metric | None  # only for German

    def lines(self) -> list[str]:
        """Names, scores and signatures, aligned."""
        shown = [each for each in (self.sacrebleu, self.tokenised, self.compounds) if each is not None]
        width = max(len(each.name) for each in shown)
        return [f"{each.name.ljust(width)}  {each!s:14}  {each.signature}" for each in shown]


def moses_tokens(text: str, language: str) -> str:
    """A line in tokens with spaces between them.

    >>> moses_tokens("Er kam z.B. am 3. Mai (um 1,5 Uhr).", "de")
    'Er kam z.B. am 3. Mai ( um 1,5 Uhr ) .'
    """
    text = " ".join(text.translate(_PUNCTUATION).split())
    text = _OTHER.sub(r" \1 ", f" {text} ")
    text = _DOTS.sub(lambda found: f" {'․' * len(found[0])} ", text)  # out of the way of the rules for one full stop
    text = _COMMA_BEFORE.sub(r" , \1", _COMMA_AFTER.sub(r"\1 , ", text))
    if language in _APOSTROPHES:
        pattern, apart = _APOSTROPHES[language]
        # An apostrophe within a word splits it; any other is a token.
        text = re.sub(rf"(?<!{_LETTER})'|'(?!{_LETTER})", " ' ", text)
        text = re.sub(pattern, apart, text)
    else:
        text = text.replace("'", " ' ")
    words = text.split()
    for number, word in enumerate(words[:-1]):
        if word.endswith(".") and len(word) > 1 and not _keeps_stop(word[:-1], words[number + 1], language):
            words[number] = f"{word[:-1]} ."
    if words and words[-1].endswith(".") and len(words[-1]) > 1 and not _keeps_stop(words[-1][:-1], "", language):
        words[-1] = f"{words[-1][:-1]} ."
    return " ".join(words).replace("․", ".")


def _keeps_stop(word: str, following: str, language: str) -> bool:
    """Whether the full stop after a word belongs to it."""
    if "." in word and any(c.isalpha() for c in word):
        return True
    if word in _ABBREVIATIONS.get(language, "").split() or (len(word) == 1 and word.isalpha() and word.isascii()):
        return True
    if language == "de" and word.isdecimal() and len(word) < 3:
        return True
    return following[:1].islower()


def split_compounds(tokens: str) -> str:
    """Hyphens as tokens of their own, in the format of GNMT and ConvS2S.

    >>> split_compounds("das Rich-Text-Format")
    'das Rich ##AT##-##AT## Text ##AT##-##AT## Format'
    """
    return COMPOUND.sub(r"\1 ##AT##-##AT## ", tokens)


def paper_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str, bootstrap: int = 1000
) -> PaperScores:
    """sacreBLEU as everybody reports it today, BLEU of Moses's tokens, and the same with split compounds."""
    standard = score(hypotheses, references, target_language=language, bootstrap=bootstrap, metrics=("bleu",))["BLEU"]
    tokens = [[moses_tokens(line, language) for line in lines] for lines in (hypotheses, references)]
    compounds = [[split_compounds(line) for line in lines] for lines in tokens] if language == "de" else None
    return PaperScores(
        Metric("sacreBLEU", standard.score, standard.signature, standard.mean, standard.confidence),
        _multi_bleu("tokenised BLEU", tokens[0], tokens[1], f"tok:moses-like-{language}"),
        _multi_bleu("with split compounds", compounds[0], compounds[1], f"tok:moses-like-{language}|compounds:split")
        if compounds
        else None,
    )


def _multi_bleu(name: str, hypotheses: Sequence[str], references: Sequence[str], tokens: str) -> Metric:
    """BLEU of text that is tokenised already, without smoothing, as multi-bleu.perl counts it."""
    import sacrebleu
    from sacrebleu.metrics import BLEU

    counter = BLEU(tokenize="none", smooth_method="none", force=True)
    found = counter.corpus_score(list(hypotheses), [list(references)])
    return Metric(name, float(found.score), f"nrefs:1|case:mixed|{tokens}|smooth:none|version:{sacrebleu.__version__}")
