"""Continuous batching: many sequences decode together, and newcomers join between two tokens."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from asyncrl_runtime.adapters.torch.batching import padded_runs
from asyncrl_runtime.adapters.torch.errors import BadRequest
from asyncrl_runtime.adapters.torch.interface import Model
from asyncrl_runtime.adapters.torch.sampling import draw, filtered, uniforms
from asyncrl_runtime.adapters.torch.settings import EngineSettings
from asyncrl_runtime.ports.generator import GenerationResult, Sampling, ShardState

_SEED_MASK = 2**64 - 1
_TAIL_COUNTERS = (2**40, 2**40 + 1)
"""Random counters beyond any token index."""

Output = tuple[list[int], list[float], list[int], Literal["stop", "length"]]
"""Fields of a `GenerationResult`."""


@dataclass(slots=True, eq=False)
class Request:
    """A request in the engine. `done` gets its output once."""

    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    done: Callable[[Output], None]
    slot: int | None = None
    started: float = 0.0
    aborted: bool = False
    output: Output | None = None


class _Slots:
    """Per-slot state, [slots] or [slots, tokens]; the running requests hold the first `count` slots."""

    def __init__(self, slots: int, tokens: int) -> None:
        self.count = 0
        self.requests: list[Request | None] = [None] * slots
        self.tokens = np.zeros((slots, tokens), np.int64)
        self.logprobs = np.zeros((slots, tokens), np.float32)
        self.versions = np.full((slots, tokens), -1, np.int32)
        self.lengths = np.zeros(slots, np.int64)
        self.prompts = np.zeros(slots, np.int64)
        self.limits = np.zeros(slots, np.int64)
        self.seeds = np.zeros(slots, np.uint64)
        self.temperature = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int64)
        self.top_p = np.ones(slots, np.float32)
        self.stops = np.zeros(slots, np.int64)
        self.watched = np.zeros(slots, bool)
        """Slots with stop strings."""

    def move(self, source: int, target: int) -> None:
        used = self.lengths[source]
        for table in (self.tokens, self.logprobs, self.versions):
            table[target, :used] = table[source, :used]
        for column in (
            self.lengths, self.prompts, self.limits, self.seeds, self.temperature,
            self.top_k, self.top_p, self.stops, self.watched,
        ):  # fmt: skip
            column[target] = column[source]
        request = self.request(source)
        self.requests[target], self.requests[source] = request, None
        request.slot = target

    def request(self, slot: int) -> Request:
        """The request that runs in a slot."""
        request = self.requests[slot]
        assert request is not None
        return request


@dataclass(slots=True)
class _StopSets:
    """Sets of stop tokens as rows of one table, [sets, vocabulary]."""

    vocab_size: int
    always: tuple[int, ...]
    table: np.ndarray = field(init=False)
    _ids: dict[tuple[int, ...], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.table = np.zeros((0, self.vocab_size), bool)

    def id_of(self, token_ids: tuple[int, ...]) -> int:
        found = self._ids.get(token_ids)
        if found is None:
            row = np.zeros((1, self.vocab_size), bool)
            row[0, [*self.always, *token_ids]] = True
            found = self._ids[token_ids] = len(self.table)
            self.table = np.concatenate((self.table, row))
        return found


class Engine:
    """Generates for up to `max_running_requests` sequences at once. One thread; time comes from `clock`.

    A completion depends on its seed, its prompt and the weights alone: token k is drawn with the k-th
    random number of its seed, whatever else runs beside it.
    """

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        *,
        clock: Callable[[], float],
        decode_text: Callable[[list[int]], str] | None = None,
    ) -> None:
        """`decode_text` turns tokens into text, for stop strings."""
        self.model = model
        self.version = -1
        self.generated_tokens = 0
        self._settings = settings
        self._clock = clock
        self._decode_text = decode_text
        self._device = next(model.parameters()).device
        self._waiting: deque[Request] = deque()
        self._held: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._slots = _Slots(settings.max_running_requests, settings.max_sequence_tokens)
        self._stops = _StopSets(model.vocab_size, settings.end_token_ids)
        self._cache = model.new_cache(settings.max_running_requests, settings.max_sequence_tokens)

    def warm_up(self) -> None:
        """Generate two tokens, so that what is built lazily is built; leaves no trace."""
        self.submit((0,), Sampling(max_new_tokens=2), 0, lambda _: None)
        while self.busy:
            self.step()
        self._held.clear()
        self.generated_tokens = 0

    def submit(
        self, token_ids: tuple[int, ...], sampling: Sampling, seed: int, done: Callable[[Output], None]
    ) -> Request:
        """Queue a request. Raises `BadRequest` when it cannot be served."""
        limit = self._settings.max_sequence_tokens
        if len(token_ids) >= limit:
            raise BadRequest(
                f"a prompt of {len(token_ids)} tokens leaves no room below the limit of {limit} tokens; "
                "shorten it or raise the sequence limit"
            )
        if not token_ids or min(token_ids) < 0 or max(token_ids) >= self.model.vocab_size:
            raise BadRequest(f"a prompt needs at least one token, each below {self.model.vocab_size}")
        if sampling.max_new_tokens < 1:
            raise BadRequest(f"max_new_tokens must be at least 1, not {sampling.max_new_tokens}")
        if sampling.stop_strings and self._decode_text is None:
            raise BadRequest("stop strings need a tokenizer, and this shard was started without one")
        request = Request(token_ids, sampling, seed & _SEED_MASK, done)
        self._waiting.append(request)
        return request

    def abort(self, request: Request) -> None:
        """Forget a request; its slot is free for the next one."""
        request.aborted = True
        if request.slot is not None:
            self._release([request.slot])
        elif request.output is None:
            self._waiting.remove(request)
        else:
            self._held = [entry for entry in self._held if entry[2] is not request]
            heapq.heapify(self._held)

    @property
    def running(self) -> int:
        """Requests that decode or are held back."""
        return self._slots.count + len(self._held)

    @property
    def state(self) -> ShardState:
        """What a probe answers."""
        slots = self._slots
        used = int(slots.lengths[: slots.count].sum())
        return ShardState(
            weight_version=self.version,
            running=self.running,
            waiting=len(self._waiting),
            generated_tokens=self.generated_tokens,
            kv_cache_usage=used / slots.tokens.size,
        )

    @property
    def busy(self) -> bool:
        """Whether `step` would compute."""
        return self._slots.count > 0 or (bool(self._waiting) and len(self._held) < len(self._slots.requests))

    def next_release(self) -> float | None:
        """When the next held request is due, by the clock."""
        return self._held[0][0] if self._held else None

    @torch.inference_mode()
    def step(self) -> None:
        """One token for every running request, and a first one for those that can join."""
        self.release_held()
        if self._slots.count:
            self._decode()
        if self._waiting:
            self._admit()

    def release_held(self) -> None:
        """Hand over the held requests that are due."""
        now = self._clock()
        while self._held and self._held[0][0] <= now:
            _, _, request = heapq.heappop(self._held)
            assert request.output is not None
            request.done(request.output)

    @torch.inference_mode()
    def invalidate_kv_cache(self) -> None:
        """Compute keys and values of running requests again, under the current weights."""
        slots = self._slots
        if slots.count:
            # The last token has not been fed yet, so its keys and values do not exist.
            known = slots.lengths[: slots.count] - 1
            order = np.argsort(known, kind="stable")
            for part in padded_runs(known[order], self._settings.max_prefill_tokens):
                chosen = order[part]
                self._prefill(slots.tokens[chosen, : known[chosen].max()], known[chosen], chosen)

    def _decode(self) -> None:
        slots = self._slots
        count = slots.count
        lengths = slots.lengths[:count]
        positions = lengths - 1
        fed = slots.tokens[np.arange(count), positions]
        logits = self.model.decode(
            self._cache, self._tensor(fed), self._tensor(positions), int(lengths.max())
        )
        self._sample(logits, np.arange(count))

    def _admit(self) -> None:
        slots = self._slots
        budget = self._settings.max_prefill_tokens
        rows: dict[tuple[int, ...], int] = {}
        row_of: list[int] = []
        first = slots.count
        width = 0
        while self._waiting and self.running < len(slots.requests):
            prompt = self._waiting[0].token_ids
            width = max(width, len(prompt))
            if rows and prompt not in rows and (len(rows) + 1) * width > budget:
                break
            row_of.append(rows.setdefault(prompt, len(rows)))
            self._occupy(self._waiting.popleft())
        if not row_of:
            return
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        padded = np.zeros((len(rows), lengths.max()), np.int64)
        for row, prompt in enumerate(rows):
            padded[row, : len(prompt)] = prompt
        taken = np.arange(first, slots.count)
        logits = self._prefill(padded, lengths, taken, np.asarray(row_of))
        self._sample(logits[self._tensor(np.asarray(row_of))], taken)

    def _prefill(
        self, padded: np.ndarray, lengths: np.ndarray, taken: np.ndarray, rows: np.ndarray | None = None
    ) -> torch.Tensor:
        rows = np.arange(len(taken)) if rows is None else rows
        tensors = (self._tensor(part) for part in (padded, lengths, rows, taken))
        return self.model.prefill(self._cache, *tensors)

    def _occupy(self, request: Request) -> None:
        slots, sampling = self._slots, request.sampling
        slot = slots.count
        slots.count += 1
        length = len(request.token_ids)
        slots.requests[slot] = request
        slots.tokens[slot, :length] = request.token_ids
        slots.lengths[slot] = slots.prompts[slot] = length
        slots.limits[slot] = min(length + sampling.max_new_tokens, slots.tokens.shape[1])
        slots.seeds[slot] = request.seed
        slots.temperature[slot] = sampling.temperature
        slots.top_k[slot] = sampling.top_k or 0
        slots.top_p[slot] = sampling.top_p
        slots.stops[slot] = self._stops.id_of(sampling.stop_token_ids)
        slots.watched[slot] = bool(sampling.stop_strings)
        request.slot = slot
        request.started = self._clock()

    def _sample(self, logits: torch.Tensor, taken: np.ndarray) -> None:
        """Append a token to each of the taken slots; logits are [taken, V]."""
        slots = self._slots
        tokens, logprobs = self._draw(logits, taken)
        lengths = slots.lengths[taken]
        slots.tokens[taken, lengths] = tokens
        slots.logprobs[taken, lengths] = logprobs
        slots.versions[taken, lengths] = self.version
        slots.lengths[taken] += 1
        self.generated_tokens += len(taken)
        stopped = self._stops.table[slots.stops[taken], tokens]
        for at in np.flatnonzero(slots.watched[taken] & ~stopped):
            stopped[at] = self._has_stop_string(taken[at])
        ended = stopped | (slots.lengths[taken] >= slots.limits[taken])
        if ended.any():
            self._finish(taken[ended], stopped[ended])

    def _draw(self, logits: torch.Tensor, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = self._slots
        logits = logits.float()
        temperature = slots.temperature[taken]
        greedy = temperature == 0
        if (temperature != 1).any():
            scale = np.where(greedy, 1, temperature)
            logits = logits / self._tensor(scale)[:, None]
        top_k, top_p = slots.top_k[taken], slots.top_p[taken]
        if top_k.any() or (top_p < 1).any():
            logits = filtered(logits, self._tensor(top_k)[:, None], self._tensor(top_p)[:, None])
        numbers = uniforms(slots.seeds[taken], slots.lengths[taken] - slots.prompts[taken])
        tokens, logprobs = draw(logits, self._tensor(numbers))
        if greedy.any():
            best = logits.argmax(-1)
            at_best = logits.log_softmax(-1).gather(-1, best[:, None]).squeeze(-1)
            chosen = self._tensor(greedy)
            tokens, logprobs = torch.where(chosen, best, tokens), torch.where(chosen, at_best, logprobs)
        drawn, at_drawn = tokens.cpu().numpy(), logprobs.cpu().numpy()
        if not np.isfinite(at_drawn).all():
            raise FloatingPointError(f"logits are not finite under weights of version {self.version}")
        return drawn, at_drawn

    def _has_stop_string(self, slot: int) -> bool:
        slots = self._slots
        assert self._decode_text is not None  # `submit` refuses stop strings without it
        text = self._decode_text(slots.tokens[slot, slots.prompts[slot] : slots.lengths[slot]].tolist())
        return any(string in text for string in slots.request(slot).sampling.stop_strings)

    def _finish(self, ended: np.ndarray, stopped: np.ndarray) -> None:
        slots = self._slots
        finished = []
        for slot, by_stop in zip(ended.tolist(), stopped.tolist(), strict=True):
            made = slice(slots.prompts[slot], slots.lengths[slot])
            request = slots.requests[slot]
            request.output = (
                slots.tokens[slot, made].tolist(),
                slots.logprobs[slot, made].tolist(),
                slots.versions[slot, made].tolist(),
                "stop" if by_stop else "length",
            )
            finished.append(request)
        self._release(ended.tolist())
        now = self._clock()
        for request in finished:
            due = self._due(request, now)
            if due <= now:
                request.done(request.output)
            else:
                heapq.heappush(self._held, (due, next(self._order), request))

    def _due(self, request: Request, now: float) -> float:
        tail = self._settings.tail
        if tail is None:
            return now
        chance, spread = uniforms(np.full(2, request.seed, np.uint64), np.asarray(_TAIL_COUNTERS))
        if tail.median_seconds:
            normal = statistics.NormalDist().inv_cdf(min(max(spread, 1e-12), 1 - 1e-12))
            return request.started + tail.median_seconds * math.exp(tail.sigma * normal)
        return now + tail.seconds if chance < tail.probability else now

    def _release(self, ended: list[int]) -> None:
        """Free slots, and move the last running ones into the holes."""
        slots = self._slots
        for slot in ended:
            slots.request(slot).slot = None
            slots.requests[slot] = None
        left = slots.count - len(ended)
        holes = [slot for slot in ended if slot < left]
        movers = [slot for slot in range(left, slots.count) if slots.requests[slot] is not None]
        for hole, mover in zip(holes, movers, strict=True):
            self._cache.move(mover, hole, int(slots.lengths[mover]))
            slots.move(mover, hole)
        slots.count = left

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def as_result(output: Output) -> GenerationResult:
    """The port's record of an output."""
    token_ids, logprobs, versions, reason = output
    return GenerationResult(tuple(token_ids), tuple(logprobs), tuple(versions), reason)
