import pytest

from asyncrl_runtime.app.manifest import ManifestError, load_manifest, read_job

MANIFEST = """\
# digits
apiVersion: asyncrl.io/v1alpha1
kind: AsyncRLJob
metadata: {name: digits}
spec:
  model: {init: {}, dtype: float32, maxTotalSequenceLength: 32}
  data: {source: {generated: {}}}
  environment: {arithmetic: {}}
  algorithm: {grpo: {numPromptsPerStep: 16}}
  generation: {backend: torch, gpusPerShard: 0}
  training: {backend: torch, gpusPerHost: 0, optimizer: {lr: 1e-3}}
  dataPlane: {backend: inProcess}
  checkpointing: {enabled: false}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def build(text=MANIFEST, name="job.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path.relative_to(tmp_path)

    return build


def lines_of(path, sets=()):
    with pytest.raises(ManifestError) as refused:
        read_job(path, sets)
    assert str(refused.value).splitlines() == list(refused.value.lines)
    return list(refused.value.lines)


def test_a_valid_manifest(write):
    job = read_job(write())
    assert job.metadata.name == "digits"
    assert job.spec.training.optimizer.lr == 0.001


def test_each_problem_has_its_place_in_the_order_of_the_file(write):
    text = MANIFEST.replace("environment: {arithmetic: {}}", "asyncRL:\n    maxInflightPrompts: 0")
    text = text.replace("backend: inProcess", "backend: inproces").replace("enabled: false", "enable: false")
    assert lines_of(write(text)) == [
        "job.yaml:5:1: spec.environment is missing: add it (what answers the model and scores it)",
        "job.yaml:9:5: spec.asyncRL.maxInflightPrompts is 0, below the minimum 1: raise it",
        'job.yaml:13:15: spec.dataPlane.backend is "inproces", not one of simple, mooncake_cpu, inProcess: '
        "use one of these; did you mean inProcess?",
        "job.yaml:14:19: spec.checkpointing.enable is not a known key: did you mean "
        "spec.checkpointing.enabled?",
    ]


def test_a_broken_rule_stands_at_its_field(write):
    text = MANIFEST + "  asyncRL:\n    sampler: {maxLookaheadVersions: 9}\n    maxBufferedRollouts: 64\n"
    (line,) = lines_of(write(text))
    assert line.startswith("job.yaml:16:5: spec.asyncRL.maxBufferedRollouts: [V-41] ")
    assert line.endswith("raise it to 160, leave it out, or narrow the window")


def test_a_rule_that_only_a_cluster_asks_for(write):
    path = write(MANIFEST.replace("enabled: false", "enabled: true"))
    assert read_job(path).spec.checkpointing.enabled
    with pytest.raises(ManifestError, match=r"job.yaml:13:3: .*\[V-79\]"):
        read_job(path, cluster=True)


def test_overrides_are_applied_in_order(write):
    sets = [
        "spec.data.source.generated={task: copy, numDigits: 3}",
        "spec.data.source.generated.numDigits=2",
        "spec.asyncRL.sampler.maxLookaheadVersions=0",
        "spec.training.optimizer.lr=1e-6",
        'spec.environment.arithmetic.reward="exact"',
        "spec.controller.env[0]={name: A, value: b=c}",
        "spec.checkpointing=null",
    ]
    spec = read_job(write(), sets).spec
    assert (spec.data.source.generated.task, spec.data.source.generated.num_digits) == ("copy", 2)
    assert spec.async_rl.sampler.max_lookahead_versions == 0
    assert spec.training.optimizer.lr == 1e-6
    assert spec.environment.arithmetic.reward == "exact"
    assert spec.controller.env[0].value == "b=c"
    assert spec.checkpointing.enabled is True


def test_an_override_is_validated_like_the_file_and_named_as_the_place(write):
    sets = ["spec.generation.shards=x", "spec.asyncRL={maxInflightPrompts: 0}"]
    assert lines_of(write(), sets) == [
        '--set spec.generation.shards=x: spec.generation.shards is "x", not a whole number: '
        "write one without quotes or a fraction",
        "--set spec.asyncRL={maxInflightPrompts: 0}: spec.asyncRL.maxInflightPrompts is 0, "
        "below the minimum 1: raise it",
    ]


def test_an_override_with_an_unknown_key_names_the_nearest(write):
    (line,) = lines_of(write(), ["spec.asyncRl.diagnostics=true"])
    assert "set spec.asyncRL.diagnostics instead" in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spec.a", "is not of the form spec.a.b=value"),
        ("=1", "is not of the form spec.a.b=value"),
        ("spec..a=1", "is not of the form spec.a.b=value"),
        ("spec.a[x]=1", "is not of the form spec.a.b=value"),
        ("spec.a=[1", "the value is not YAML"),
        ("spec.data.shuffle=true", None),
        ("spec.algorithm.grpo.numPromptsPerStep.x=1", "x names a key of what is no block"),
        ("spec.controller.env[2]=1", "[2] names an entry of what has 0 entries"),
        ("spec.model[0]=1", "[0] names an entry of what is no list"),
    ],
)
def test_overrides_that_cannot_be_applied(write, text, problem):
    path = write()
    if problem is None:
        assert read_job(path, [text])
        return
    (line,) = lines_of(path, [text])
    assert line.startswith(f"--set {text}: {problem}")


def test_the_one_job_of_a_file_with_other_objects(write):
    other = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    text = f"{other}---\n{MANIFEST}---\n"
    assert read_job(write(text)).metadata.name == "digits"
    (line,) = lines_of(write(text.replace("arithmetic: {}", "arithmetics: {}")))
    assert line.startswith("job.yaml:12:17: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{MANIFEST}---\n{MANIFEST}", "job.yaml: holds 2 jobs, in lines 2, 16: give each a file of its own"),
        ("a: 1\n---\nb: 2\n", "job.yaml: holds 2 objects and no AsyncRLJob: add one"),
        ("", "job.yaml: the manifest is empty, not an object"),
        ("- 1\n", "job.yaml:1:1: the manifest is a list, not an object"),
        ("a: 1\na: 2\n", "job.yaml:2:1: a is set twice, first in line 1: keep one"),
        ("a: [", "job.yaml:1:5: not YAML: "),
    ],
)
def test_files_that_hold_no_manifest(write, text, problem):
    (line,) = lines_of(write(text))
    assert line.startswith(problem)


def test_files_that_cannot_be_read(write, tmp_path):
    assert lines_of(tmp_path / "none.yaml") == [
        f"{tmp_path}/none.yaml: cannot be read: No such file or directory"
    ]
    assert lines_of(tmp_path) == [f"{tmp_path}: cannot be read: Is a directory"]
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xe9\n")
    assert lines_of(latin) == [f"{latin}: is not UTF-8 text: invalid continuation byte at byte 3"]


def test_an_empty_file_can_be_filled_by_overrides(write):
    raw, positions = load_manifest(write("spec:\n"), ["spec.suspend=true"])
    assert raw == {"spec": {"suspend": True}}
    assert positions.where("spec.suspend") == "--set spec.suspend=true"
    assert positions.where("spec.model.name") == "job.yaml:1:1"
