"""One update of the weights: loss and gradients of its micro-batches, clipping, the optimizer's step.

`PlainUpdate` takes batches of any shape on any machine. `SlotUpdate` takes batches of one shape in memory that never moves,
so that its code can be compiled and the whole update captured as a CUDA graph: the host then copies the next batch and
replays. The host never waits for results; it only waits so as to stay at most two updates ahead.
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

from regard.data.batch import on_device
from regard.data.slot_batch import SlotShape
from regard.layout import SlotLayout
from regard.models.stack import Stack
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.nn.attention import set_joined, set_kernel
from regard.nn.block import set_fused
from regard.nn.embedding import SinusoidalPositions
from regard.nn.kernels import Kernel, choose
from regard.parallel.ranks import Ranks
from regard.tasks.task import LossFunction
from regard.training.fast import FastPath
from regard.training.sharded import gathered

WARM_UPDATES = 3  # before the capture; ordinary updates that also compile
AHEAD = 2  # updates that the host may be ahead of the device


@dataclass(frozen=True)
class UpdateResult:
    """Sums over the update's tokens, and the gradient norm before clipping; scalars on the device."""

    total: Tensor  # loss with label smoothing and R-Drop
    nll: Tensor
    norm: Tensor


@dataclass(frozen=True)
class UpdateOptions:
    """Settings of [train] that an update needs."""

    smoothing: float
    clip: float  # largest gradient norm; 0: no clipping
    autocast: torch.dtype | None
    rdrop: float = 0.0  # alpha of R-Drop; 0: a single pass


class PlainUpdate:
    """Updates from batches of any shape, without compilation."""

    is_warmed_up = True  # nothing to compile

    def __init__(
        self,
        loss: LossFunction,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        options: UpdateOptions,
        ranks: Ranks | None = None,
    ) -> None:
        self.loss, self.model, self.optimizer, self.options = loss, model, optimizer, options
        self.ranks = ranks or Ranks()
        self.device = next(model.parameters()).device

    def __call__(self, parts: Sequence[Any], count: int) -> UpdateResult:
        """`parts` are the task's batches."""
        batches = [on_device(part, self.device, non_blocking=True) for part in parts]
        return update(self.loss, self.model, self.optimizer, self.options, batches, float(count), ranks=self.ranks)


class WorkingCopy:
    """A half-precision copy of the model that computes, while the model itself keeps float32 weights and gets the gradients.
    Under autocast every layer would convert its own weights and gradients, in many small kernels."""

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
        """Copy the model's weights into the working copy."""
        torch._foreach_copy_(self._weights, self._masters)

    @torch.no_grad()
    def return_gradients(self, add: bool) -> None:
        """Move the gradients of one micro-batch to the model, where micro-batches are summed in float32."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        masters = [master.grad for master in self._masters if master.grad is not None]
        assert len(gradients) == len(masters)  # every weight has a gradient
        (torch._foreach_add_ if add else torch._foreach_copy_)(masters, gradients)
        for weight in self._weights:
            weight.grad = None


class SlotUpdate:
    """Updates from fixed-shape batches, with the parts of the fast path that `path` names."""

    def __init__(
        self,
        loss: LossFunction,
        model: Transformer,
        optimizer: torch.optim.Optimizer,
        options: UpdateOptions,
        slots: SlotShape,
        accumulate: int,
        path: FastPath,
        say: Callable[[str], None] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """`accumulate` is the number of micro-batches that this process computes per update."""
        self.loss, self.model, self.optimizer, self.options, self.path = loss, model, optimizer, options, path
        self.ranks = ranks or Ranks()
        assert self.ranks.size == 1 or not path.graph  # see fast_path
        self.copy = WorkingCopy(model, options.autocast) if options.autocast is not None else None
        self.device = next(model.parameters()).device
        self.say = say or (lambda text: None)
        # Every batch is copied into this memory; `batches` are views of it.
        self.words = torch.zeros((accumulate, slots.size), dtype=torch.int32, device=self.device)
        self.batches = [slots.unpack(words) for words in self.words]
        self._updates = 0
        self._started = time.perf_counter()
        self._compiled = 0
        if path.compile:
            # torch compiles at most eight graphs per function in a process; those of an earlier model are useless now.
            torch.compiler.reset()
            self._compiled = num_compiled()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(self.device) if path.graph else None
        self._result: UpdateResult | None = None
        self._pending: deque[torch.cuda.Event] = deque()
        working = self.copy.model if self.copy is not None else model
        for stack in working.stacks:
            if isinstance(stack.positions, SinusoidalPositions):
                stack.positions.reserve(slots.max_length)  # now: compiled code cannot grow the table
        set_kernel(working, self._kernel() if path.attention else "dense")
        set_joined(working, path.attention)
        set_fused(working, path.residual, path.feedforward)
        if path.compile:
            for stack in working.stacks:
                compile_stack(stack)

    def _kernel(self) -> Kernel:
        """The fastest attention for these batches: that for short sequences, or for long ones."""
        layouts = [part for part in vars(self.batches[0]).values() if isinstance(part, SlotLayout)]
        dtype = self.options.autocast or torch.float32
        return choose(self.device, dtype, max(layouts, key=lambda layout: layout.max_length))

    @property
    def is_warmed_up(self) -> bool:
        """Whether the updates that compile and capture are over, so that updates run at full speed."""
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
            self._report_compilation()
        self._limit_lead()
        assert self._result is not None
        return self._result

    def _update(self) -> UpdateResult:
        count = self.batches[0].count  # of the whole update, in every micro-batch
        return update(
            self.loss,
            self.model,
            self.optimizer,
            self.options,
            self.batches,
            count,
            self.path.loss,
            self.copy,
            self.ranks,
        )

    def _on_stream(self, work: Callable[[], UpdateResult]) -> None:
        """Run on a side stream, as CUDA requires before and during a capture."""
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
        # The feed's thread allocates pinned memory meanwhile, which would invalidate a capture that watches all threads.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            result = self._update()
        self._graph = graph
        return result

    def _limit_lead(self) -> None:
        """Keep the host close to the device, so that the clock, the log and Ctrl-C match what is being computed."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._pending.append(event)
        if len(self._pending) > AHEAD:
            self._pending.popleft().synchronize()

    def _report_compilation(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        graphs = num_compiled() - self._compiled
        self.say(f"compiled {graphs} graphs; first update after {time.perf_counter() - self._started:.1f} s")


def update(
    loss_of: LossFunction,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    options: UpdateOptions,
    batches: Sequence[Any],
    count: float | Tensor,
    fused_loss: bool = False,
    working_copy: WorkingCopy | None = None,
    ranks: Ranks | None = None,
) -> UpdateResult:
    """One optimizer step. The loss of each micro-batch is a sum; the one division is by `count`, the labels of the whole update
    over all processes."""
    working, dtype = model, options.autocast
    if working_copy is None:
        optimizer.zero_grad(set_to_none=True)
    else:
        working, dtype = working_copy.model, None
        working_copy.refresh()
    device = next(model.parameters()).device
    scale = 1.0 / torch.as_tensor(count, device=device) if fused_loss else None
    token_loss = TokenLoss(options.smoothing, options.rdrop, scale)
    totals, nlls = [], []
    for number, batch in enumerate(batches):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = loss_of(working, batch, token_loss)
        if loss.total.requires_grad:  # else its backward pass is done
            torch.autograd.backward(loss.total / count)
        if working_copy is not None:
            working_copy.return_gradients(add=number > 0)
        totals.append(loss.total.detach())
        nlls.append(loss.nll)
    # In an update of very few records a process may have no micro-batch.
    total, nll = (torch.stack(each).sum() if each else torch.zeros((), device=device) for each in (totals, nlls))
    if ranks is not None:
        ranks.sum_gradients(list(model.parameters()), total, nll)
    norm = gathered(nn.utils.clip_grad_norm_(model.parameters(), options.clip or math.inf))
    optimizer.step()
    return UpdateResult(total, nll, norm)


def compile_stack(stack: Stack) -> None:
    """Compile layer by layer: layers share their code, so one compilation serves a whole stack. A graph break is an error; shapes
    never change."""
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    for layer in stack.layers:
        layer.compile(**options)
    if (first := stack.sequence[0]).chains:  # its norm stands outside of the layer
        first.self_residual.norm.compile(**options)
    stack.enter = torch.compile(stack.enter, **options)  # type: ignore[method-assign]


def num_compiled() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
