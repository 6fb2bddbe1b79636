"""One update of the weights: loss and gradients of its parts, clipping, the optimizer's step.

`PlainUpdate` takes batches of any shape on any machine. `SlotUpdate` takes batches of one shape from memory that never
moves, so that its code can be compiled and the whole update captured as a CUDA graph: the host then copies the next batch
and replays. The host never waits for a result, and only so as not to be more than two updates ahead.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.slot_batch import SlotBatch, Slots
from regard.models.loss import backward_linear_cross_entropy, linear_cross_entropy
from regard.models.rdrop import rdrop_cross_entropy
from regard.models.transformer import Stack, Transformer
from regard.nn.attention import set_kernel
from regard.nn.block import set_fused
from regard.nn.embedding import SinusoidalPositions
from regard.parallel.ranks import Ranks
from regard.training.fast import FastPath
from regard.training.sharded import gathered

WARM_UPDATES = 3  # before the capture; they compile, and they are updates like any other
AHEAD = 2  # updates that the host may be ahead of the device


@dataclass(frozen=True)
class UpdateResult:
    """Sums over the update's tokens, and the gradient's norm before clipping; all on the device."""

    total: Tensor
    nll: Tensor
    norm: Tensor


@dataclass(frozen=True)
class UpdateOptions:
    smoothing: float
    clip: float  # 0: none
    autocast: torch.dtype | None
    rdrop: float = 0.0  # alpha of R-Drop; 0: each part goes through the model once


class PlainUpdate:
    is_warmed_up = True  # nothing is compiled on the way

    def __init__(
        self, model: Transformer, optimizer: torch.optim.Optimizer, options: UpdateOptions, ranks: Ranks | None = None
    ) -> None:
        self.model, self.optimizer, self.options, self.ranks = model, optimizer, options, ranks or Ranks()
        self.device = next(model.parameters()).device

    def __call__(self, parts: Sequence[Batch], count: int) -> UpdateResult:
        batches = [part.to(self.device, non_blocking=True) for part in parts]
        return update(self.model, self.optimizer, self.options, batches, float(count), ranks=self.ranks)


class WorkingCopy:
    """A copy of the model in half precision, which computes; the model itself keeps the weights in float32, and gets the
    gradients. Under autocast every layer would convert its weights and their gradients on its own, in many small kernels."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        self.model = copy.deepcopy(model).train()
        self._masters: list[Tensor] = list(model.parameters())
        self._weights: list[Tensor] = list(self.model.parameters())
        for weight in self._weights:
            weight.data = weight.data.to(dtype)
        for master in self._masters:
            master.grad = torch.zeros_like(master)

    @torch.no_grad()
    def refresh(self) -> None:
        torch._foreach_copy_(self._weights, self._masters)

    @torch.no_grad()
    def return_gradients(self, add: bool) -> None:
        """The gradients of one part to the model; parts are added up in float32."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        masters = [master.grad for master in self._masters if master.grad is not None]
        assert len(gradients) == len(masters)  # every weight takes part
        (torch._foreach_add_ if add else torch._foreach_copy_)(masters, gradients)
        for weight in self._weights:
            weight.grad = None


class SlotUpdate:
    def __init__(
        self,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        options: UpdateOptions,
        slots: Slots,
        accumulate: int,
        path: FastPath,
        say: Callable[[str], None] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`accumulate` is the number of parts that this process has of an update."""
        self.model, self.optimizer, self.options, self.path = model, optimizer, options, path
        self.ranks = ranks or Ranks()
        assert self.ranks.size == 1 or not path.graph  # see fast_path
        self.copy = WorkingCopy(model, options.autocast) if options.autocast is not None else None
        self.device = next(model.parameters()).device
        self.say = say or (lambda text: None)
        # The memory that every batch is copied into, and the batches as views of it.
        self.words = torch.zeros((accumulate, slots.size), dtype=torch.int32, device=self.device)
        self.batches = [slots.unpack(words) for words in self.words]
        self._updates = 0
        self._begun = time.perf_counter()
        self._compiled = 0
        if path.compile:
            # torch allows a function eight graphs in a process, and those of an earlier model are of no use any more.
            torch.compiler.reset()
            self._compiled = num_compiled()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(self.device) if path.graph else None
        self._result: UpdateResult | None = None
        self._pending: deque[torch.cuda.Event] = deque()
        working = self.copy.model if self.copy is not None else model
        for stack in (working.encoder, working.decoder):
            if isinstance(stack.positions, SinusoidalPositions):
                stack.positions.reserve(slots.max_length)  # not on the way, in compiled code
        set_kernel(working, "triton" if path.attention else "dense")
        set_fused(working, path.residual, path.feedforward)
        if path.compile:
            for stack in (working.encoder, working.decoder):
                compile_stack(stack)

    @property
    def is_warmed_up(self) -> bool:
        """Whether the updates that compile and capture are over: what follows is the speed of the run."""
        return self._updates > (WARM_UPDATES if self.path.graph else 0)

    def __call__(self, parts: Sequence[Tensor], count: int) -> UpdateResult:
        for words, part in zip(self.words, parts, strict=True):
            words.copy_(part, non_blocking=True)
        if self._graph is not None:
            self._graph.replay()
        elif self._stream is None:
            self._result = self._update()
        else:
            self._on_stream(self._update if self._updates < WARM_UPDATES else self._capture)
        self._updates += 1
        if self._updates == 1 and self.path.compile:
            self._tell()
        self._hold_back()
        assert self._result is not None
        return self._result

    def _update(self) -> UpdateResult:
        count = self.batches[0].count  # of the whole update, in every part
        return update(
            self.model, self.optimizer, self.options, self.batches, count, self.path.loss, self.copy, self.ranks
        )

    def _on_stream(self, work: Callable[[], UpdateResult]) -> None:
        """Before and during the capture everything runs on one stream beside the default one, as captures demand."""
        assert self._stream is not None
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._result = work()
        current.wait_stream(self._stream)
        if self._graph is not None:
            self._graph.replay()

    def _capture(self) -> UpdateResult:
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # The feed's thread takes page-locked memory meanwhile; a capture that watches all threads would be spoilt by that.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            result = self._update()
        self._graph = graph
        return result

    def _hold_back(self) -> None:
        """Let the host be only a little ahead, so that the clock, the log and Ctrl-C mean what is being computed."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._pending.append(event)
        if len(self._pending) > AHEAD:
            self._pending.popleft().synchronize()

    def _tell(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        graphs = num_compiled() - self._compiled
        self.say(f"compiled {graphs} graphs; first update after {time.perf_counter() - self._begun:.1f} s")


def update(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    options: UpdateOptions,
    batches: Sequence[Batch | SlotBatch],
    count: float | Tensor,
    fused_loss: bool = False,
    working_copy: WorkingCopy | None = None,
    ranks: Ranks | None = None,
) -> UpdateResult:
    """Every part's loss is a sum; the one division is by `count`, the tokens of the whole update, over all processes."""
    working, dtype = model, options.autocast
    if working_copy is None:
        optimizer.zero_grad(set_to_none=True)
    else:
        working, dtype = working_copy.model, None
        working_copy.refresh()
    device = next(model.parameters()).device
    totals, nlls = [], []
    for number, batch in enumerate(batches):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            inputs = (batch.src, batch.src_layout, batch.tgt_in, batch.tgt_layout)
            hidden = working.hidden(*inputs)
            target = (hidden, working.output_weight, batch.labels, options.smoothing)
            if options.rdrop:
                loss = rdrop_cross_entropy(hidden, working.hidden(*inputs), *target[1:], options.rdrop)
            elif not fused_loss:
                loss = linear_cross_entropy(*target)
        if fused_loss:
            loss = backward_linear_cross_entropy(*target, 1.0 / torch.as_tensor(count, device=device))
        else:
            torch.autograd.backward(loss.total / count)
        if working_copy is not None:
            working_copy.return_gradients(add=number > 0)
        totals.append(loss.total.detach())
        nlls.append(loss.nll)
    # An update of very few pairs leaves a process without a part.
    total, nll = (torch.stack(each).sum() if each else torch.zeros((), device=device) for each in (totals, nlls))
    if ranks is not None:
        ranks.sum_gradients(list(model.parameters()), total, nll)
    norm = gathered(nn.utils.clip_grad_norm_(model.parameters(), options.clip or math.inf))
    optimizer.step()
    return UpdateResult(total, nll, norm)


def compile_stack(stack: Stack) -> None:
    """Compile each layer on its own. They share their code, so that one compilation serves all layers of a stack; a
    change of shape would be a mistake and not be compiled for, and neither is anything that breaks the graph."""
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    for layer in stack.layers:
        layer.compile(**options)
    stack.enter = torch.compile(stack.enter, **options)  # type: ignore[method-assign]


def num_compiled() -> int:
    """Graphs that this process has compiled up to now."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
