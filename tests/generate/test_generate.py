"""The engine with models that continue prompts: the same text in any batch, every option, limits and refusals."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from regard.errors import InputError, UserError
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, SearchOptions, TextEngine
from regard.generate.search.phrases import Phrase
from regard.models.transformer import Transformer
from tests.build import build, tiny_config
from tests.nn.test_prompts import DECODERS

BOS, EOS, STOP = 1, 2, 3
LIMIT = 12


def decoder(name: str = "llama", **changes: Any) -> Transformer:
    return build(tiny_config(encoder_layers=0, **{**DECODERS[name], **changes}))


def make_prompts(number: int, longest: int = 25, seed: int = 5) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, 53) for _ in range(draw.randrange(0, longest))] for _ in range(number)]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=1, max_extra=LIMIT),
        SearchOptions(beam=3, nbest=2, max_extra=LIMIT, no_repeat=2),
        SearchOptions(beam=3, nbest=3, max_extra=LIMIT, sample=True, top_p=0.9, repetition_penalty=1.2),
    ],
    ids=["greedy", "beam", "sample"],
)
def test_a_prompt_gets_the_same_text_in_any_batch(name: str, options: SearchOptions) -> None:
    model = decoder(name)
    prompts = make_prompts(17)
    together = TorchEngine(model, BOS, EOS, batch=17).generate(prompts, options)
    assert TorchEngine(model, BOS, EOS, batch=4).generate(prompts, options) == together
    assert [TorchEngine(model, BOS, EOS).generate([one], options)[0] for one in prompts] == together
    order = random.Random(1).sample(range(17), 17)
    again = TorchEngine(model, BOS, EOS, batch=7).generate([prompts[number] for number in order], options)
    assert again == [together[number] for number in order]


@pytest.mark.parametrize("stops", [(), (STOP, 9, 30)], ids=["one-end", "several-ends"])
@pytest.mark.parametrize("sample", [False, True])
def test_log_probabilities_are_those_of_scoring_the_text(stops: tuple[int, ...], sample: bool) -> None:
    engine = TorchEngine(decoder(), BOS, EOS, stop_ids=stops)
    prompts = make_prompts(9)
    found = engine.generate(prompts, SearchOptions(beam=3, nbest=3, max_extra=LIMIT, sample=sample))
    seen = set()
    for prompt, some in zip(prompts, found, strict=True):
        for one, values in zip(some, engine.score([prompt] * 3, [one.ids for one in some]), strict=True):
            seen.add(one.ended)
            assert len(values) == len(one.ids) + 1
            if not one.ended:  # what stops at its limit has not ended
                assert len(one.ids) == LIMIT
                assert sum(values[:-1]) == pytest.approx(one.log_prob, abs=1e-4)
            elif not stops or not sample:  # samples end by any of the ends, all together
                assert sum(values) == pytest.approx(one.log_prob, abs=1e-4)
    assert seen == {True, False} or not stops


def test_next_log_probs_agree_with_what_is_chosen() -> None:
    engine = TorchEngine(decoder(), BOS, EOS, forbidden=(0, 1))
    for prompt in make_prompts(4):
        [[best]] = engine.generate([prompt], SearchOptions(beam=1, max_extra=LIMIT))
        tokens = [*best.ids, EOS] if best.ended else list(best.ids)
        for place, token in enumerate(tokens):
            values = engine.next_log_probs(prompt, tokens[:place])
            assert token == max((t for t in range(53) if t > 1), key=values.__getitem__)


@pytest.mark.parametrize("options", [SearchOptions(beam=1), SearchOptions(beam=3), SearchOptions(beam=1, sample=True)])
def test_streaming_shows_what_is_generated(options: SearchOptions) -> None:
    engine = TorchEngine(decoder(), BOS, EOS, stop_ids=[STOP])
    for prompt in make_prompts(5):
        [[best, *_]] = engine.generate([prompt], options)
        shown = list(engine.stream(prompt, options))
        assert shown[-1] == best.ids
        assert all(best.ids[: len(one)] == one for one in shown)
        if options.beam == 1:
            assert [len(one) for one in shown[:-1]] == list(range(1, len(best.ids) + 1))


def test_any_of_several_ends_stops_a_text() -> None:
    model, prompts = decoder(), make_prompts(12)
    options = SearchOptions(beam=1, max_extra=30)
    endless = TorchEngine(model, BOS, -1).generate(prompts, options)
    assert all(len(one.ids) == 30 and not one.ended for [one] in endless)
    ends = [endless[0][0].ids[4], endless[3][0].ids[2]]
    found = TorchEngine(model, BOS, ends[0], stop_ids=ends).generate(prompts, options)
    for [cut], [whole] in zip(found, endless, strict=True):
        places = [place for place, token in enumerate(whole.ids) if token in ends]
        assert cut.ids == whole.ids[: places[0] if places else 30]
        assert cut.ended == bool(places)
    assert TorchEngine(model, BOS, -1, stop_ids=ends).generate(prompts, options) == found


def test_a_model_without_an_end_never_ends() -> None:
    engine = TorchEngine(decoder(), BOS, -1)
    for options in (SearchOptions(beam=3, nbest=3, max_extra=5), SearchOptions(beam=2, sample=True, max_extra=5)):
        for some in engine.generate(make_prompts(3), options):
            assert all(len(one.ids) == 5 and not one.ended for one in some)
    assert engine.score([[5]], [[6, 7]])[0][-1] == float("-inf")


def test_an_empty_prompt_begins_a_text() -> None:
    options = SearchOptions(beam=2, max_extra=6)
    model = decoder()
    assert TorchEngine(model, BOS, EOS).generate([[]], options) == TorchEngine(model, BOS, EOS).generate(
        [[BOS]], options
    )
    assert TorchEngine(model, -1, EOS).generate([[]], options) == TorchEngine(model, -1, EOS).generate([[EOS]], options)
    with pytest.raises(UserError, match="a prompt must not be empty with this model"):
        TorchEngine(model, -1, -1).generate([[5], []], options)


def test_limits_and_the_length_of_the_context() -> None:
    engine = TorchEngine(decoder("gpt2", max_positions=16), BOS, -1)
    prompts = [[5] * 3, [6] * 15, [7] * 10]
    found = engine.generate(prompts, SearchOptions(beam=1, max_extra=8))
    assert [len(one.ids) for [one] in found] == [8, 1, 6]  # as many as there is room for
    constraints = [Constraints(max_tokens=2), Constraints(max_tokens=0), Constraints((8, 9), max_tokens=1)]
    found = engine.generate(prompts, SearchOptions(beam=2, max_extra=8), constraints=constraints)
    assert [len(some[0].ids) for some in found[:2]] == [2, 0]
    assert found[2][0].ids == (8, 9)
    with pytest.raises(
        InputError, match="a prompt must have fewer than 16 tokens, the limit of this model, but has 16"
    ):
        engine.generate([[5], [5] * 16], SearchOptions(beam=1))
    with pytest.raises(InputError, match="must have at most 16 tokens, the limit of this model, but has 17"):
        engine.generate([[5] * 14], SearchOptions(beam=1), constraints=[Constraints((7, 8, 9))])
    with pytest.raises(InputError, match="a text with its prompt must have at most 16 tokens"):
        engine.score([[5] * 8], [[5] * 9])
    with pytest.raises(InputError, match="a text with its prompt must have at most 16 tokens"):
        engine.next_log_probs([5] * 8, [5] * 9)


def test_prefixes_phrases_and_groups_work_without_a_source() -> None:
    engine = TorchEngine(decoder(), BOS, EOS, forbidden=(0, 1))
    prompts = make_prompts(6)
    constraints = [Constraints((7, (8, 9)), (Phrase(((20, 21), (22,))), Phrase(((30,),))))] * 6
    for options in (
        SearchOptions(beam=1, max_extra=LIMIT),
        SearchOptions(beam=4, nbest=4, max_extra=LIMIT),
        SearchOptions(beam=2, nbest=2, max_extra=LIMIT, sample=True),
    ):
        for some in engine.generate(prompts, options, constraints=constraints):
            for one in some:
                assert one.ids[0] == 7 and one.ids[1] in (8, 9) and 30 in one.ids
                assert 22 in one.ids or (20, 21) in zip(one.ids, one.ids[1:], strict=False)
                assert not {0, 1, 2} & {*one.ids}
    [apart] = engine.generate([[5, 6]], SearchOptions(beam=4, nbest=4, groups=4, diversity=100.0, max_extra=LIMIT))
    assert len({one.ids[:1] for one in apart}) == 4


def test_what_is_generated_does_not_repeat_the_prompt() -> None:
    engine = TorchEngine(decoder(), BOS, -1)
    prompt = [5, 6, 7, 8]
    for sample in (False, True):
        [[one, *_]] = engine.generate([prompt], SearchOptions(beam=2, no_repeat=1, max_extra=40, sample=sample))
        text = [*prompt, *one.ids]
        assert len(set(text)) == len(text) == 44
    with pytest.raises(InputError, match="no token may follow that no_repeat and max_repeat allow"):
        engine.generate([prompt], SearchOptions(beam=1, no_repeat=1, max_extra=50))


def test_progress_is_told_of_every_prompt_once() -> None:
    engine = TorchEngine(decoder(), BOS, EOS, batch=3)
    told: list[int] = []
    engine.generate(make_prompts(11), SearchOptions(beam=2, max_extra=3), told.extend)
    assert sorted(told) == list(range(11))


def test_an_ensemble_of_decoders_averages_probabilities() -> None:
    one, other = decoder(), build(tiny_config(encoder_layers=0, **DECODERS["gpt2"]), seed=3)
    engine = TorchEngine(one, BOS, EOS, others=[other])
    prompts = make_prompts(4)
    found = engine.generate(prompts, SearchOptions(beam=2, max_extra=LIMIT))
    for prompt, [best] in zip(prompts, found, strict=True):
        ids = best.ids
        apart = [TorchEngine(model, BOS, EOS).score([prompt], [ids])[0] for model in (one, other)]
        mean = torch.logsumexp(torch.tensor(apart), dim=0) - torch.tensor(2.0).log()
        values = mean if best.ended else mean[:-1]
        assert float(values.sum()) == pytest.approx(best.log_prob, abs=1e-4)


def test_what_needs_a_source_is_refused_by_name() -> None:
    engine: TextEngine = TorchEngine(decoder(), BOS, EOS)
    with pytest.raises(UserError, match="coverage needs a source"):
        engine.generate([[5]], SearchOptions(coverage=0.2))
    with pytest.raises(UserError, match="coverage needs a source"):
        next(engine.stream([5], SearchOptions(coverage=0.2)))
    constraint = Constraints(phrases=(Phrase(((5,),), source=frozenset([1])),))
    with pytest.raises(ValueError, match="phrases must not name tokens of a source"):
        engine.generate([[5]], SearchOptions(), constraints=[constraint])
    assert isinstance(engine, TorchEngine)
    with pytest.raises(UserError, match="it continues texts and does not translate; use generate"):
        engine.translate([[5]], SearchOptions())
    with pytest.raises(UserError, match="there is no source that its words could be aligned with"):
        engine.attention([[5]], [[6]])
    with pytest.raises(UserError, match="it translates and does not continue texts; use translate"):
        TorchEngine(build(tiny_config()), BOS, EOS).generate([[5]], SearchOptions())


def test_outputs_of_translation_always_end() -> None:
    found = TorchEngine(build(tiny_config()), BOS, EOS).translate([[5, 6], [7]], SearchOptions(beam=2, max_extra=1))
    assert all(one.ended and isinstance(one, Hypothesis) for some in found for one in some)
