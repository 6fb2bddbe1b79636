"""The beam's tree against a slow search in plain Python that writes down what it does."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from regard.explain.beam import BeamRecorder, Node
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, SearchOptions
from regard.generate.search.core import SearchStep
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from tests.build import build, tiny_config

BOS, EOS, FORBIDDEN = 1, 2, (0, 1, 3)
Ids = tuple[int, ...]


def next_log_probs(model: Transformer, src: list[int], prefix: Ids) -> list[float]:
    """Of every token after a prefix, the whole model computed anew."""
    src_in, tgt_in = torch.tensor([*src, EOS]), torch.tensor([BOS, *prefix])
    layouts = [SequenceLayout.from_lengths([len(ids)]) for ids in (src_in, tgt_in)]
    with torch.no_grad():
        return torch.log_softmax(model(src_in, layouts[0], tgt_in, layouts[1])[-1], dim=-1).tolist()


def slow_search(
    model: Transformer, src: list[int], options: SearchOptions, prefix: Ids
) -> tuple[dict[Ids, str], list[Ids]]:
    """What became of every hypothesis, and the pool, best first. Endings are hypotheses that end with EOS."""
    limit = len(src) + options.max_extra
    live: list[tuple[float, Ids]] = [(0.0, ())]
    pool: list[tuple[float, Ids]] = []
    fates: dict[Ids, str] = {}
    while True:
        candidates = []
        for log_prob, ids in live:
            allowed = [token for token in range(model.config.vocab_size) if token not in FORBIDDEN]
            if len(ids) < len(prefix):
                allowed = [prefix[len(ids)]]
            elif len(ids) >= limit:
                allowed = [EOS]
            values = next_log_probs(model, src, ids)
            candidates += [(log_prob + values[token], (*ids, token)) for token in allowed]
        best = sorted(candidates, reverse=True)[: 2 * options.beam]
        fates |= {ids: "dropped" for _, ids in best}
        length = len(best[0][1])
        ended = [
            (log_prob / ((5 + length) / 6) ** options.alpha, ids)
            for log_prob, ids in best[: options.beam]
            if ids[-1] == EOS
        ]
        pool = sorted(pool + ended, reverse=True)[: options.beam]
        fates |= {ids: "finished" for _, ids in pool}
        live = [(log_prob, ids) for log_prob, ids in best if ids[-1] != EOS][: options.beam]
        fates |= {ids: "kept" for _, ids in live}
        if options.beam == 1:
            done = bool(pool)
        else:
            done = not live or bool(pool and pool[0][0] >= live[0][0] / ((6 + limit) / 6) ** options.alpha)
        if done:
            fates |= {ids: "open" for _, ids in live}
            return fates, [ids for _, ids in pool]


def ids_of(nodes: list[Node], node: Node) -> Ids:
    ids: Ids = ()
    while node.parent >= 0:
        ids = (node.id, *ids)
        node = nodes[node.parent]
    return ids


def ending_model(seed: int) -> Transformer:
    model = build(tiny_config(vocab_size=23), seed)
    with torch.no_grad():
        model.embedding.weight[EOS] *= 1.6  # so that hypotheses of several lengths end
        model.embedding.weight.mul_(1.5)
    return model


@pytest.mark.parametrize("beam", [1, 2, 4])
@pytest.mark.parametrize("prefix", [(), (7, 9)])
@pytest.mark.parametrize("alpha", [0.6, 3.0])  # a strong penalty lets long hypotheses push short ones out of the pool
@pytest.mark.parametrize("seed", range(6))
def test_the_tree_holds_exactly_what_the_search_kept_finished_and_dropped(
    seed: int, alpha: float, beam: int, prefix: Ids
) -> None:
    model = ending_model(seed)
    draw = random.Random(seed)
    src = [draw.randrange(4, 23) for _ in range(draw.randrange(2, 6))]
    options = SearchOptions(beam=beam, alpha=alpha, max_extra=4)
    fates, pool = slow_search(model, src, options, prefix)
    recorder = BeamRecorder(BOS)
    [[best]] = TorchEngine(model, BOS, EOS, forbidden=FORBIDDEN).search([src], options, [Constraints(prefix)], recorder)
    nodes = recorder.tree({token: str(token) for token in range(23)})
    assert {ids_of(nodes, node): node.fate for node in nodes[1:]} == fates
    assert len(nodes) == len(fates) + 1
    ranked = sorted((node for node in nodes if node.rank is not None), key=lambda node: node.rank or 0)
    assert [ids_of(nodes, node) for node in ranked] == pool
    assert ids_of(nodes, ranked[0]) == (*best.ids, EOS)
    assert (ranked[0].log_prob, ranked[0].score) == pytest.approx((best.log_prob, best.score), abs=1e-4)


def test_the_searches_above_met_every_fate() -> None:
    """Else the comparison would show less than it says."""
    met = set()
    pushed_out = 0
    for seed, alpha in itertools.product(range(6), (0.6, 3.0)):
        draw = random.Random(seed)
        src = [draw.randrange(4, 23) for _ in range(draw.randrange(2, 6))]
        recorder = BeamRecorder(BOS)
        options = SearchOptions(beam=2, alpha=alpha, max_extra=4)
        TorchEngine(ending_model(seed), BOS, EOS, forbidden=FORBIDDEN).search([src], options, (), recorder)
        nodes = recorder.tree({token: str(token) for token in range(23)})
        met |= {node.fate for node in nodes}
        pushed_out += sum(node.fate == "finished" and node.rank is None for node in nodes)
        assert all(node.text == str(node.id) and node.step == len(ids_of(nodes, node)) for node in nodes)
    assert met == {"kept", "open", "finished", "dropped"}
    assert pushed_out > 0


def test_watching_a_search_changes_nothing() -> None:
    engine = TorchEngine(ending_model(0), BOS, EOS, forbidden=FORBIDDEN)
    seen: list[SearchStep] = []
    src = [[5, 6, 7], [8, 9, 10, 11, 12]]
    options = SearchOptions(beam=3, nbest=3, max_extra=4)
    assert engine.search(src, options, observer=seen.append) == engine.translate(src, options)
    assert {number for step in seen for number in step.sentences} == {0, 1}


def test_sentences_of_one_batch_begin_with_their_own_prefixes() -> None:
    engine = TorchEngine(ending_model(1), BOS, EOS, forbidden=FORBIDDEN)
    options = SearchOptions(beam=3, max_extra=4)
    src, prefixes = [[5, 6, 7], [8, 9], [8, 9]], [(11, 0), (), (13,)]  # 0 is forbidden, but asked for
    together = engine.search(src, options, [Constraints(prefix) for prefix in prefixes])
    for ids, prefix, found in zip(src, prefixes, together, strict=True):
        assert found[0].ids[: len(prefix)] == prefix
        assert engine.search([ids], options, [Constraints(prefix)]) == [found]
    assert together[1] == engine.translate([[8, 9]], options)[0]


def test_a_place_of_a_prefix_may_leave_a_choice() -> None:
    engine = TorchEngine(ending_model(2), BOS, EOS, forbidden=FORBIDDEN)
    for choice in ([4, 5, 6], [20], [EOS, 9]):
        [[best]] = engine.search([[5, 6, 7]], SearchOptions(beam=3, max_extra=4), [Constraints([12, choice])])
        assert best.ids[0] == 12
        assert (*best.ids, EOS)[1] in choice
