from pathlib import Path

from asyncrl_runtime.app.commands import crd_command
from asyncrl_runtime.app.metrics_page import SECTIONS, metrics_page
from asyncrl_runtime.core.metric_table import METRICS

ROOT = Path(__file__).parents[2]
AGAIN = "run `make generate`"


def test_the_crd_file_is_what_the_models_give(capsys):
    crd_command(as_json=False)

    assert (ROOT / "crds" / "asyncrljobs.yaml").read_text(encoding="utf-8") == capsys.readouterr().out, AGAIN


def test_the_metrics_page_is_what_the_table_gives():
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == metrics_page(), AGAIN


def test_every_metric_is_in_one_section():
    shown = [metric.name for _, metrics in SECTIONS for metric in metrics]

    assert sorted(shown) == sorted(metric.name for metric in METRICS)
