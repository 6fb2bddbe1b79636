"""The beam search of one sentence as a tree: every hypothesis it considered, and what became of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from regard.generate.search.core import SearchStep

# kept: was extended.  open: still live when the search ended.  finished: ended in </s> and entered the pool.
# dropped: among the best 2 * beam candidates of its step, but neither kept nor finished.
Fate = Literal["kept", "open", "finished", "dropped"]


@dataclass(frozen=True)
class Node:
    """A hypothesis: its parent's tokens and one more."""

    parent: int  # index in the list of nodes; -1 for the root
    step: int  # number of tokens; 0 for the root
    place: int  # rank among the candidates of its step, from 0
    id: int
    text: str
    log_prob: float  # of the whole hypothesis
    fate: Fate
    score: float | None = None  # finished: the length-penalized log-probability that ranks hypotheses
    rank: int | None = None  # finished: rank in the final pool, 1 is the translation; None: displaced by better ones


class BeamRecorder:
    """Records the search of one sentence; pass it as `observer`."""

    def __init__(self, bos_id: int) -> None:
        self.nodes = [Node(-1, 0, 0, bos_id, "", 0.0, "kept")]
        self._live: list[int] = [0]  # nodes of the live hypotheses; at the start only the first row is live
        self._pool: list[int] = []
        self._step = 0

    def __call__(self, seen: SearchStep) -> None:
        assert seen.sentences == [0], "only one sentence can be recorded"
        self._step += 1
        log_probs, parents, tokens = (values[0].tolist() for values in (seen.log_probs, seen.parents, seen.tokens))
        added: dict[int, int] = {}  # candidate -> node
        for place, (log_prob, parent, token) in enumerate(zip(log_probs, parents, tokens, strict=True)):
            if log_prob > -math.inf:
                added[place] = len(self.nodes)
                self.nodes.append(Node(self._live[parent], self._step, place, token, "", log_prob, "dropped"))
        beam = seen.pooled.shape[1]
        scores = seen.pool_scores[0].tolist()
        pool = []
        for source, score in zip(seen.pooled[0].tolist(), scores, strict=True):
            if score == -math.inf:
                break
            pool.append(self._pool[source] if source < beam else added[source - beam])
            self._change(pool[-1], fate="finished", score=score)
        self._pool = pool
        kept = zip(seen.kept[0].tolist(), seen.live_log_probs[0].tolist(), strict=True)
        self._live = [added[place] if log_prob > -math.inf else -1 for place, log_prob in kept]
        for number in self._live:
            if number >= 0:
                self._change(number, fate="kept")

    def _change(self, number: int, **fields: object) -> None:
        self.nodes[number] = replace(self.nodes[number], **fields)  # type: ignore[arg-type]  # names of Node's fields

    def tree(self, texts: dict[int, str]) -> list[Node]:
        """All hypotheses once the search is over, each after its parent; `texts` gives the text of each token."""
        for rank, number in enumerate(self._pool, 1):
            self._change(number, rank=rank)
        for number in self._live:
            if number >= 0:
                self._change(number, fate="open")
        return [replace(node, text=texts[node.id]) for node in self.nodes]
