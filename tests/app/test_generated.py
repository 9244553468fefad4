from pathlib import Path

from grpc_tools import protoc

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


def test_the_control_messages_are_what_the_proto_file_gives(tmp_path):
    source = ROOT / "crds" / "src"
    options = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{source}", *options, "asyncrl_api/control/control.proto"]) == 0
    made = sorted((tmp_path / "asyncrl_api" / "control").iterdir())
    assert len(made) == 3
    for path in made:
        assert path.read_text() == (source / "asyncrl_api" / "control" / path.name).read_text(), AGAIN
