"""The search in slots beside the search in batches: the same translations, whoever shares the slots."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from regard.errors import RegardError
from regard.generate.engines.slot_engine import SlotDecoder
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, SearchOptions
from regard.generate.search.phrases import Phrase
from regard.models.transformer import Transformer
from regard.nn.slot_cache import gathered_attention
from tests.build import LATER, SWITCHES, build, tiny_config
from tests.nn.test_prompts import DECODERS

BOS, EOS, FORBIDDEN = 1, 2, (0, 1)


def sentences(number: int, longest: int = 30, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 53) for _ in range(draw.randint(0, longest))] for _ in range(number)]


def in_slots(
    model: Transformer, src: list[list[int]], options: SearchOptions, slots: int, device: str = "cpu"
) -> list[list[Hypothesis]]:
    decoder = SlotDecoder(model.to(device).eval(), BOS, EOS, FORBIDDEN, slots)
    results: list[list[Hypothesis]] = [[] for _ in src]
    seen = []
    for number, hypotheses in decoder.translate(src, [len(ids) + options.max_extra for ids in src], options):
        results[number] = hypotheses
        seen.append(number)
    assert sorted(seen) == list(range(len(src)))  # each once
    return results


def assert_same(results: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for got, wanted in zip(results, expected, strict=True):
        assert [hypothesis.ids for hypothesis in got] == [hypothesis.ids for hypothesis in wanted]
        for one, other in zip(got, wanted, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize(("beam", "alpha", "nbest"), [(1, 0.6, 1), (4, 0.6, 1), (3, 1.0, 3), (2, 0.0, 2)])
@pytest.mark.parametrize("switch", ["paper", "modern", "learned", "one-kv-head"])
def test_slots_find_what_batches_find(switch: str, beam: int, alpha: float, nbest: int) -> None:
    model = build(tiny_config(**SWITCHES[switch]))
    options = SearchOptions(beam=beam, alpha=alpha, nbest=nbest, max_extra=10)
    src = sentences(21)
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).translate(src, options)
    assert_same(in_slots(model, src, options, slots=8), expected)


@pytest.mark.parametrize("switch", [name for name in LATER if name not in ("relative", "t5")])
def test_slots_find_what_batches_find_with_settings_of_other_families(switch: str) -> None:
    model = build(tiny_config(**LATER[switch]))
    options, src = SearchOptions(beam=2, max_extra=6), sentences(6)
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).translate(src, options)
    assert_same(in_slots(model, src, options, slots=4), expected)


def test_slots_refuse_relative_positions_by_name() -> None:
    model = build(tiny_config(**LATER["relative"]))
    with pytest.raises(
        ValueError, match=r"the slot cache takes no bias on the scores \(model\.positions = 'relative'\)"
    ):
        in_slots(model, sentences(2), SearchOptions(beam=1), slots=2)


def test_it_does_not_matter_who_shares_the_slots() -> None:
    """Alone, two by two, all together, in another order, with long ones in larger slots among them."""
    model = build(tiny_config())
    options = SearchOptions(beam=3, max_extra=8)
    src = sentences(17) + sentences(2, longest=150, seed=3)
    whole = in_slots(model, src, options, slots=32)
    for slots in (1, 2, 5):
        assert_same(in_slots(model, src, options, slots), whole)
    order = list(range(len(src)))
    random.Random(1).shuffle(order)
    shuffled = in_slots(model, [src[number] for number in order], options, slots=4)
    assert_same(shuffled, [whole[number] for number in order])


def test_slots_are_used_again_without_a_trace() -> None:
    """One decoder, several calls: what an earlier sentence left in a slot is not seen by a later one."""
    model = build(tiny_config()).eval()
    options = SearchOptions(beam=2, max_extra=6)
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 4)
    src = sentences(9)
    limits = [len(ids) + 6 for ids in src]
    first = dict(decoder.translate(src, limits, options))
    again = dict(decoder.translate(src[::-1], limits[::-1], options))
    for number in range(9):
        assert [h.ids for h in first[number]] == [h.ids for h in again[8 - number]]
    assert len(decoder._runners) == 1


def test_two_callers_at_once_do_not_meet() -> None:
    model = build(tiny_config()).eval()
    options = SearchOptions(beam=2, max_extra=6)
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 4)
    one, other = sentences(16, seed=1), sentences(16, seed=2)
    limits = [[len(ids) + 6 for ids in src] for src in (one, other)]
    expected = [dict(decoder.translate(src, limit, options)) for src, limit in zip((one, other), limits, strict=True)]
    found: list[dict[int, list[Hypothesis]]] = [{}, {}]
    streams = [decoder.translate(src, limit, options) for src, limit in zip((one, other), limits, strict=True)]
    for results in itertools.zip_longest(*streams):
        for place, result in enumerate(results):
            if result is not None:
                found[place][result[0]] = result[1]
    for got, wanted in zip(found, expected, strict=True):
        assert_same([got[n] for n in range(16)], [wanted[n] for n in range(16)])


def test_a_caller_may_stop_early() -> None:
    model = build(tiny_config()).eval()
    options = SearchOptions(beam=2, max_extra=6)
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 4)
    src = sentences(12)
    limits = [len(ids) + 6 for ids in src]
    expected = dict(decoder.translate(src, limits, options))
    stopped = decoder.translate(src, limits, options)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    again = dict(decoder.translate(src, limits, options))
    assert_same([again[n] for n in range(12)], [expected[n] for n in range(12)])
    assert len(decoder._runners) == 1


@pytest.mark.parametrize("max_positions", [10, 40])
def test_learned_positions_are_the_room(max_positions: int) -> None:
    model = build(tiny_config(positions="learned", max_positions=max_positions))
    options = SearchOptions(beam=3, max_extra=max_positions)
    src = [*sentences(6, longest=max_positions - 1), [7] * (max_positions - 1)]
    limits = [max_positions - 1 for _ in src]
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).translate(src, options)
    found = dict(SlotDecoder(model, BOS, EOS, FORBIDDEN, 4).translate(src, limits, options))
    assert_same([found[n] for n in range(len(src))], expected)
    with pytest.raises(ValueError, match=f"of {max_positions + 1} tokens is longer than max_positions"):
        next(SlotDecoder(model, BOS, EOS, FORBIDDEN, 4).translate([[7] * max_positions], [3], options))


def test_the_tables_that_a_graph_reads_are_kept() -> None:
    model = build(tiny_config()).eval()
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 2)
    list(decoder.translate([[5] * 3], [600], SearchOptions(beam=1)))
    (runner,) = decoder._runners.values()
    assert runner.cache.tgt_capacity > 512
    for stack in (model.encoder, model.decoder):
        assert any(stack.positions.table is kept for kept in runner._graph_inputs)


# --- prompts ---


def prompts_in_slots(
    model: Transformer,
    prompts: list[list[int]],
    options: SearchOptions,
    slots: int,
    stops: tuple[int, ...] = (),
    device: str = "cpu",
) -> list[list[Hypothesis]]:
    decoder = SlotDecoder(model.to(device).eval(), BOS, EOS, FORBIDDEN, slots, stops)
    found = dict(decoder.translate(prompts, [options.max_extra + n % 3 for n in range(len(prompts))], options))
    return [found[number] for number in range(len(prompts))]


def prompts_in_batches(
    model: Transformer, prompts: list[list[int]], options: SearchOptions, stops: tuple[int, ...] = ()
) -> list[list[Hypothesis]]:
    engine = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN, stop_ids=stops)
    constraints = [Constraints(max_tokens=options.max_extra + n % 3) for n in range(len(prompts))]
    return engine.generate(prompts, options, constraints=constraints)


def some_prompts(number: int, longest: int = 30, seed: int = 0) -> list[list[int]]:
    return [[5, *ids][-longest:] for ids in sentences(number, longest, seed)]  # none is empty, some have one token


def assert_same_stops(results: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert_same(results, expected)
    for got, wanted in zip(results, expected, strict=True):
        assert [one.ended for one in got] == [one.ended for one in wanted]


@pytest.mark.parametrize(("beam", "alpha", "nbest"), [(1, 0.6, 1), (4, 0.6, 1), (3, 1.0, 3)])
@pytest.mark.parametrize("stops", [(), (7, 30)], ids=["one-end", "several-ends"])
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "relative"])
def test_slots_continue_prompts_as_batches_do(
    name: str, stops: tuple[int, ...], beam: int, alpha: float, nbest: int
) -> None:
    model = build(tiny_config(encoder_layers=0, **DECODERS[name]))
    options = SearchOptions(beam=beam, alpha=alpha, nbest=nbest, max_extra=10)
    prompts = some_prompts(11)
    expected = prompts_in_batches(model, prompts, options, stops)
    found = prompts_in_slots(model, prompts, options, 4, stops)
    assert_same_stops(found, expected)
    assert stops or beam > 1 or any(not one.ended for some in found for one in some)


def test_it_does_not_matter_which_prompts_share_the_slots() -> None:
    model = build(tiny_config(encoder_layers=0, **DECODERS["llama"]))
    options = SearchOptions(beam=3, max_extra=8)
    prompts = some_prompts(14) + some_prompts(2, longest=150, seed=3)
    whole = prompts_in_slots(model, prompts, options, 16)
    assert_same_stops(whole, prompts_in_batches(model, prompts, options))
    for slots in (1, 2, 5):
        assert_same_stops(prompts_in_slots(model, prompts, options, slots), whole)


def test_a_slot_holds_a_prompt_once_for_all_hypotheses() -> None:
    model = build(tiny_config(encoder_layers=0, **DECODERS["llama"])).eval()
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 2)
    [(_, hypotheses)] = decoder.translate([[5, 6, 7, 8, 9]], [3], SearchOptions(beam=3, nbest=3))
    assert len(hypotheses) == 3
    (runner,) = decoder._runners.values()
    keys = runner.cache.layers[0].self_attention.keys
    assert keys.shape[0] == 1 * 3 + 1  # one slot of three rows, and an entry for what belongs to no prompt
    assert (keys[0, 1:4].abs().sum(dim=(1, 2)) > 0).all()
    assert keys[1:3, 1:4].abs().sum() == 0  # a slot that is done goes on at position 0


def test_learned_positions_are_the_room_of_prompts() -> None:
    model = build(tiny_config(encoder_layers=0, positions="learned", max_positions=20))
    options = SearchOptions(beam=2, max_extra=30)
    prompts = [[5] * 3, [6] * 19, [7] * 10]
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).generate(prompts, options)
    engine = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN, slots=True)
    assert_same_stops(engine.generate(prompts, options), expected)
    with pytest.raises(ValueError, match="of 21 tokens is longer than max_positions = 20"):
        next(SlotDecoder(model, BOS, EOS, FORBIDDEN, 4).translate([[7] * 20], [1], options))


def test_the_engine_continues_in_slots_and_falls_back_for_other_options() -> None:
    model = build(tiny_config(encoder_layers=0, **DECODERS["llama"]))
    plain = TorchEngine(model, BOS, -1, forbidden=FORBIDDEN)
    prompts = [[], *some_prompts(5)]
    for options in (
        SearchOptions(beam=2, max_extra=6),
        SearchOptions(beam=2, max_extra=6, sample=True),
        SearchOptions(beam=1, max_extra=6, no_repeat=1),
    ):
        expected = plain.generate(prompts, options)
        found = TorchEngine(
            build(tiny_config(encoder_layers=0, **DECODERS["llama"])), BOS, -1, forbidden=FORBIDDEN, slots=True
        )
        assert_same_stops(found.generate(prompts, options), expected)


def test_relative_positions_are_refused_in_slots() -> None:
    model = build(tiny_config(encoder_layers=0, **DECODERS["relative"]))
    with pytest.raises(ValueError, match="takes no bias on the scores"):
        prompts_in_slots(model, [[5, 6, 7]], SearchOptions(beam=1, max_extra=3), 1)


def test_a_model_that_overflows_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(tiny_config())
    engine = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN, slots=True)
    monkeypatch.setattr(SlotDecoder, "translate", lambda *_: iter([(0, [])]))
    with pytest.raises(RegardError, match="not finite in half precision"):
        engine.translate([[5]], SearchOptions())


def test_translations_keep_to_their_limits_and_hold_nothing_forbidden() -> None:
    model = build(tiny_config())
    for beam in (1, 3):
        options = SearchOptions(beam=beam, max_extra=2)
        for ids, hypotheses in zip(src := sentences(12), in_slots(model, src, options, 4), strict=True):
            assert hypotheses and all(len(h.ids) <= len(ids) + 2 and not {0, 1, 2} & {*h.ids} for h in hypotheses)


def test_gathered_attention_is_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(6, 4, 8, generator=generator, dtype=torch.float64)
    keys, values = (torch.randn(6, 5, 2, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    lengths, ancestors = torch.tensor([3, 5]), torch.randint(6, (6, 5), generator=generator)
    out = gathered_attention(q, keys, values, lengths, ancestors, 3, scale=0.3)
    for row in range(6):
        for head in range(4):
            places = range(int(lengths[row // 3]))
            k = torch.stack([keys[ancestors[row, t], t, head // 2] for t in places])
            v = torch.stack([values[ancestors[row, t], t, head // 2] for t in places])
            expected = torch.softmax(k @ q[row, head] * 0.3, dim=0) @ v
            torch.testing.assert_close(out[row, head], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (3, 3), (10, 2)])
def test_a_gpu_finds_lists_and_wide_beams(beam: int, nbest: int) -> None:
    model = build(tiny_config(d_model=64, num_heads=4))
    options = SearchOptions(beam=beam, nbest=nbest, max_extra=8)
    src = sentences(24)
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).translate(src, options)
    found = in_slots(model, src, options, 8, "cuda")
    assert_same(found, expected)


@pytest.mark.gpu
def test_a_longer_room_does_not_disturb_a_captured_one() -> None:
    model = build(tiny_config(d_model=64, num_heads=4)).to("cuda").eval()
    options = SearchOptions(beam=2, max_extra=8)
    decoder = SlotDecoder(model, BOS, EOS, FORBIDDEN, 4)
    src = [[5 + n % 40] * n for n in (3, 9, 30)]
    first = dict(decoder.translate(src, [len(ids) + 8 for ids in src], options))
    list(decoder.translate([[7] * 1500], [600], options))  # the tables of positions grow
    torch.cuda.empty_cache()
    again = dict(decoder.translate(src, [len(ids) + 8 for ids in src], options))
    assert_same([again[n] for n in range(3)], [first[n] for n in range(3)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_captured_graph_finds_what_a_cpu_finds(dtype: torch.dtype) -> None:
    model = build(tiny_config(d_model=64, num_heads=4))
    options = SearchOptions(beam=4, max_extra=8)
    src = sentences(40)
    expected = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).translate(src, options)
    found = in_slots(model.to(dtype), src, options, 8, "cuda")
    same = sum(a[0].ids == b[0].ids for a, b in zip(found, expected, strict=True))
    assert same >= (40 if dtype == torch.float32 else 34)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "cohere"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_gpu_continues_prompts_as_a_cpu_does(name: str, dtype: torch.dtype, beam: int) -> None:
    model = build(tiny_config(encoder_layers=0, d_model=64, **DECODERS[name]))
    options = SearchOptions(beam=beam, max_extra=10)
    prompts = some_prompts(40)
    expected = prompts_in_batches(model, prompts, options, (7,))
    found = prompts_in_slots(model.to(dtype), prompts, options, 8, (7,), "cuda")
    same = sum(a[0].ids == b[0].ids for a, b in zip(found, expected, strict=True))
    assert same >= (40 if dtype == torch.float32 else 32)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    "constraint",
    [Constraints(), Constraints((7,)), Constraints(phrases=(Phrase(((9, 10),)),))],
    ids=["plain", "prefix", "phrase"],
)
def test_progress_is_told_of_every_sentence_once(slots: bool, constraint: Constraints) -> None:
    engine = TorchEngine(build(tiny_config()), BOS, EOS, forbidden=FORBIDDEN, batch=3, slots=slots)
    draw = random.Random(3)
    src = [[draw.randrange(4, 53) for _ in range(draw.randrange(0, 9))] for _ in range(11)]
    told: list[int] = []
    engine.translate(src, SearchOptions(beam=2, max_extra=3), told.extend, [constraint] * len(src))
    assert sorted(told) == list(range(len(src)))


def test_with_slots_whatever_computes_does_so_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server scores and aligns in other threads than it translates in."""
    engine = TorchEngine(build(tiny_config()), BOS, EOS, forbidden=FORBIDDEN, batch=4, slots=True)
    encode, alone = Transformer.encode, []

    def watched(self, *arguments):
        alone.append(engine._lock.locked())
        return encode(self, *arguments)

    monkeypatch.setattr(Transformer, "encode", watched)
    src, options = [[5, 6, 7], [8, 9]], SearchOptions(beam=2, max_extra=3)
    for work in (
        lambda: engine.translate(src, options, constraints=[Constraints((7,)), Constraints()]),
        lambda: engine.score(src, [[5, 6], [7]]),
        lambda: engine.attention(src, [[5, 6], [7]]),
        lambda: engine.next_log_probs(src[0], [5]),
        lambda: list(engine.stream(src[0], options)),
    ):
        alone.clear()
        work()
        assert alone and all(alone)
        assert not engine._lock.locked()
