"""What the benchmarks share: figures beside their bounds, and an exit status that tells."""

import argparse
from dataclasses import dataclass, field


@dataclass
class Report:
    """Prints each figure beside its bound and remembers whether one was missed."""

    title: str
    missed: list = field(default_factory=list)

    def __post_init__(self):
        print(self.title)

    def at_least(self, name, value, bound, unit=""):
        """A figure that must not be below its bound."""
        self._line(name, value, f">= {bound:,.6g}", value >= bound, unit)

    def at_most(self, name, value, bound, unit=""):
        """A figure that must not be above its bound."""
        self._line(name, value, f"<= {bound:,.6g}", value <= bound, unit)

    def near(self, name, value, expected, tolerance, unit=""):
        """A figure that must be what a model says, within a tolerance."""
        self._line(
            name, value, f"{expected:,.6g} ± {tolerance:g}", abs(value - expected) <= tolerance + 1e-9, unit
        )

    def note(self, name, value, unit=""):
        """A figure without a bound."""
        self._line(name, value, "", True, unit)

    def _line(self, name, value, bound, kept, unit):
        shown = f"{value:,.4g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
        print(f"  {name:<58} {shown:>10} {unit:<9} {bound:<22}{'' if kept else '  MISSED'}", flush=True)
        if not kept:
            self.missed.append(name)

    def exit_status(self):
        """0 if every bound is kept."""
        if self.missed:
            print(f"missed: {', '.join(self.missed)}")
        return 1 if self.missed else 0


def arguments(text, **numbers):
    """The command line: `--quick` for a smoke run, and numbers by name with what they are without one."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds; figures are coarse")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    return parser.parse_args()
