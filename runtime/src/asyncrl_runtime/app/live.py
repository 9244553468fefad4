"""The live view: a picture of a snapshot on a terminal, one line per step elsewhere (CLI-30, CLI-31)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl_runtime.app import words

BAR_WIDTH = 32
NUM_EVENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What is seen of a run at one moment. None: not known yet."""

    name: str
    phase: str
    progress: str = ""
    """What long set-up work is doing, such as "loading weights of 2 shards"."""

    step: int = 0
    max_steps: int = 0
    eta_seconds: float | None = None
    reward: float | None = None
    best_reward: float | None = None
    reward_history: Sequence[float] = ()
    validation: Mapping[str, float] = field(default_factory=dict)
    staleness_p50: float | None = None
    staleness_p95: float | None = None
    staleness_max: float | None = None
    staleness_bound: float | None = None
    buffer_ready: int = 0
    buffer_inflight: int = 0
    buffer_capacity: int = 0
    shards: Mapping[str, int] = field(default_factory=dict)
    """Shards by state."""

    generated_tokens_per_second: float | None = None
    trained_tokens_per_second: float | None = None
    trainer_idle_fraction: float | None = None
    events: Sequence[Mapping[str, object]] = ()
    """Newest last."""


def render(view: RunView) -> RenderableType:
    """The picture."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("step", _step(view))
    table.add_row("reward", _reward(view))
    table.add_row("staleness", _staleness(view))
    table.add_row("buffer", _buffer(view))
    table.add_row("shards", _shards(view))
    table.add_row("tokens", _tokens(view))
    table.add_row("trainer", _trainer(view))
    for number, event in enumerate(view.events[-NUM_EVENTS:]):
        table.add_row(
            "" if number else "events", Text(words.event_line(event), style="dim", overflow="ellipsis")
        )
    return Group(_title(view), table)


def line(view: RunView) -> str:
    """The view in one line without control codes."""
    marks = words.near_bound(view.staleness_max, view.staleness_bound)
    stale = words.staleness(view.staleness_p50, view.staleness_p95, view.staleness_max, view.staleness_bound)
    held = f"{view.buffer_ready} ready, {view.buffer_inflight} in flight"
    parts = [
        f"step {view.step} of {view.max_steps}",
        f"reward {words.reward(view.reward)} (best {words.reward(view.best_reward)})",
        *(f"validation {name} {value:.3f}" for name, value in view.validation.items()),
        f"staleness {stale}" + (f" ({marks})" if marks else ""),
        f"buffer {held} of {view.buffer_capacity} groups",
        f"shards {words.shards_by_state(view.shards)}",
        f"generation {words.count(view.generated_tokens_per_second)} tokens/s",
        f"trainer idle {words.percent(view.trainer_idle_fraction)}",
        f"{words.duration(view.eta_seconds)} left",
    ]
    return "  |  ".join(parts)


def setup_line(view: RunView) -> str:
    """What set-up is doing, without control codes."""
    return f"{view.phase}: {view.progress}" if view.progress else view.phase


def _title(view: RunView) -> Text:
    colors = {"Running": "green", "Succeeded": "green", "Failed": "red"}
    title = Text.assemble((view.name, "bold"), "  ", (view.phase, colors.get(view.phase, "yellow")))
    return title.append(f"  {view.progress}", "dim") if view.progress else title


def _step(view: RunView) -> Text:
    done = view.step / view.max_steps if view.max_steps else 0.0
    bar = _bar([(done, "█", "green")])
    return bar.append(f"  {view.step} of {view.max_steps}, {words.duration(view.eta_seconds)} left")


def _reward(view: RunView) -> Text:
    text = Text.assemble(
        (words.reward(view.reward), "bold cyan"),
        f"  best {words.reward(view.best_reward)}  ",
        (words.sparkline(view.reward_history, BAR_WIDTH), "cyan"),
    )
    for name, value in view.validation.items():
        text.append(f"  validation {name} {value:.3f}")
    return text


def _staleness(view: RunView) -> Text:
    p50, p95, top, bound = view.staleness_p50, view.staleness_p95, view.staleness_max, view.staleness_bound
    return _marked(Text(words.staleness(p50, p95, top, bound)), words.near_bound(top, bound))


def _buffer(view: RunView) -> Text:
    capacity = max(view.buffer_capacity, 1)
    bar = _bar([(view.buffer_ready / capacity, "█", "blue"), (view.buffer_inflight / capacity, "▒", "blue")])
    held = f"{view.buffer_ready} ready, {view.buffer_inflight} in flight"
    bar.append(f"  {held}, capacity {view.buffer_capacity} groups")
    used = view.buffer_ready + view.buffer_inflight
    word = words.near_bound(used, view.buffer_capacity or None)
    return _marked(bar, word and {"at bound": "full", "near bound": "nearly full"}.get(word, word))


def _shards(view: RunView) -> Text:
    text = Text(words.shards_by_state(view.shards))
    serving = view.shards.get("HEALTHY", 0) + view.shards.get("SUSPECT", 0)
    return _marked(text, "some out of service" if serving < sum(view.shards.values()) else "")


def _tokens(view: RunView) -> Text:
    generated = words.count(view.generated_tokens_per_second)
    trained = words.count(view.trained_tokens_per_second)
    return Text(f"generation {generated} tokens/s, training {trained} tokens/s")


def _trainer(view: RunView) -> Text:
    idle = view.trainer_idle_fraction
    text = Text(f"idle {words.percent(idle)}")
    return _marked(text, "waits for generation" if idle is not None and idle >= 0.5 else "")


def _marked(text: Text, word: str) -> Text:
    """A warning is a word, not a colour alone."""
    return text.append("  ").append(word, "bold yellow") if word else text


def _bar(parts: Sequence[tuple[float, str, str]]) -> Text:
    bar, used = Text(), 0
    for fraction, character, style in parts:
        width = min(BAR_WIDTH - used, round(fraction * BAR_WIDTH))
        width = max(width, 1) if fraction > 0 and used < BAR_WIDTH else max(width, 0)
        bar.append(character * width, style)
        used += width
    return bar.append("░" * (BAR_WIDTH - used), "dim")
