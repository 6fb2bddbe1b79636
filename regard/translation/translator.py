"""Lines of text through an engine: the text side, driven directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.options import Constraints, Engine, Hypothesis
from regard.progress import OnProgress
from regard.translation.constraints import TextConstraints
from regard.translation.mbr import Utility
from regard.translation.protect import encode_pairs
from regard.translation.queries import drive
from regard.translation.reading import count_lines, one_line
from regard.translation.results import Result
from regard.translation.text_side import TextSide
from regard.translation.translation_options import TranslationOptions


class Translator:
    """Translates lines of text with an engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        options: TranslationOptions,
        max_length: int,
        utility: Utility | None = None,
    ) -> None:
        """`max_length` is the longest segment in tokens, `utility` the metric that `options.mbr` names."""
        self.engine = engine
        self.text_side = TextSide(tokenizer, options, max_length, takes_phrases=engine.takes_phrases, utility=utility)

    def translate(
        self,
        lines: Sequence[str],
        on_progress: OnProgress | None = None,
        constraints: Sequence[TextConstraints] = (),
        steps: int = 1,
    ) -> list[Result]:
        """A result for every line, in order. `on_progress` is called as lines are finished, in whatever order, as `count_lines`
        counts them, `steps` for each; `constraints` are one for each line, or none."""
        segmented = self.text_side.segment(lines, constraints)
        on_finished = None if on_progress is None else count_lines(segmented.segments, on_progress, steps)
        return drive(self.text_side.translate(segmented), self.engine, on_finished)

    def stream(
        self,
        lines: Iterable[str],
        chunk: int,
        on_progress: OnProgress | None = None,
        constraints: TextConstraints | None = None,
        steps: int = 1,
    ) -> Iterator[Result]:
        """Results one by one, with at most `chunk` lines in memory; an engine sorts the lines of a chunk by length. `constraints`
        hold for every line."""
        lines = iter(lines)
        while block := list(islice(lines, chunk)):
            yield from self.translate(block, on_progress, [constraints] * len(block) if constraints else (), steps)

    def follow(self, text: str, constraints: TextConstraints) -> Iterator[str]:
        """Translate one text: yields the stable beginning as it grows, then the whole. A segment with protected spans, or any
        with the guard on, appears only when complete."""
        side, options = self.text_side, self.text_side.options
        if options.mbr or options.search.nbest > 1:
            raise UserError("only a single translation without reranking can be followed; leave out mbr and nbest")
        done, shown = "", ""
        [segments] = side.segment([text], [constraints]).segments
        if not segments and (copied := side.reader.copied(text)):
            yield copied
            return
        built = side.constraint_builder.build([segments], [constraints]) or [Constraints()] * len(segments)
        for number, (segment, own) in enumerate(zip(segments, built, strict=True)):
            done += segment.before
            # Protected spans and the guard may still change the output, so it is shown only when complete.
            shows_partial = side.reader.kept(segment.text) is None and not options.guard
            ids: tuple[int, ...] = ()
            for ids in self.engine.stream(side.reader.encode([segment.text])[0], options.engine_search, own):
                begun = one_line(done + side.tokenizer.decode(ids).rstrip("\ufffd").strip())
                if shows_partial and begun.startswith(shown) and begun != shown:
                    shown = begun
                    yield shown
            given = TextConstraints() if number else constraints
            task = side.translations([segment.text], [[Hypothesis(ids, 0.0, 0.0)]], [given])
            [[best, *_]] = drive(task, self.engine)
            done += side.as_written(segment, best).text + segment.after
        if one_line(done) != shown:
            yield one_line(done)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        src, tgt = ([line.strip() for line in lines] for lines in (sources, targets))
        languages = [self.text_side.options.languages[1]] * len(sources)
        return self.engine.score(*encode_pairs(self.text_side.tokenizer, src, tgt, languages))
