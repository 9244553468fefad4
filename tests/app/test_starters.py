from pathlib import Path

import pytest
import yaml

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.resolve import resolve
from asyncrl_runtime.adapters.environments.arithmetic import share_of_right_positions
from asyncrl_runtime.adapters.environments.build import build_environment
from asyncrl_runtime.adapters.sources.build import training_prompts, validation_prompts
from asyncrl_runtime.adapters.tokenizers.build import load_tokenizer
from asyncrl_runtime.app.starters import STARTERS, FileExists, UnknownTask, find, text, write
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.ports.environment import Episode, Turn

SAMPLES = Path(__file__).parents[2] / "crds" / "samples"


def job_of(starter):
    return AsyncRLJob.model_validate(yaml.safe_load(text(starter.manifest)))


@pytest.mark.parametrize("starter", STARTERS, ids=lambda s: s.task)
def test_a_starter_is_a_valid_job_that_runs_on_cpus(starter):
    spec = job_of(starter).spec

    assert (spec.generation.backend, spec.generation.gpus_per_shard) == ("torch", 0)
    assert (spec.training.backend, spec.training.gpus_per_host) == ("torch", 0)
    assert spec.data_plane.backend == "inProcess"


@pytest.mark.parametrize("starter", STARTERS, ids=lambda s: s.task)
def test_a_starter_breaks_no_rule(starter):
    job = job_of(starter)
    assert job.metadata.name == starter.manifest.removesuffix(".yaml")
    assert resolve(job) is not None


@pytest.mark.parametrize("starter", [s for s in STARTERS if s.task != "hugging-face"], ids=lambda s: s.task)
async def test_its_prompts_and_answers_fit_tokenizer_and_lengths(starter, tmp_path):
    write(starter, tmp_path)
    spec = job_of(starter).spec
    tokenizer = load_tokenizer(spec.model, spec.data)
    source = training_prompts(spec.data, folder=tmp_path)
    prompts = await source.fetch([PromptRef(0, k) for k in range(min(200, len(source)))])

    for prompt in prompts:
        length = len(tokenizer.render(prompt.messages))
        longest = spec.generation.sampling.max_new_tokens
        assert length + longest <= spec.model.max_total_sequence_length
        assert len(tokenizer.encode(prompt.answer)) <= longest


@pytest.mark.parametrize("starter", STARTERS[:4], ids=lambda s: s.task)
async def test_digit_starters_hold_data_for_all_their_steps(starter):
    spec = job_of(starter).spec
    grpo = spec.algorithm.grpo

    assert len(training_prompts(spec.data)) >= grpo.max_num_steps * grpo.num_prompts_per_step
    assert len(validation_prompts(spec.data)) == 256


def test_the_samples_of_the_repository_are_the_starters():
    names = {name for starter in STARTERS for name in starter.files}

    assert {path.name for path in SAMPLES.iterdir()} >= names
    for name in names:
        assert (SAMPLES / name).read_text() == text(name), f"copy app/starters/files/{name} to crds/samples"


def test_writing_a_starter_never_overwrites(tmp_path):
    paths = write(find("function"), tmp_path)
    assert [path.name for path in paths] == ["function.yaml", "reward.py"]

    paths[0].unlink()
    paths[1].write_text("mine")
    with pytest.raises(FileExists, match=r"reward.py exists already"):
        write(find("function"), tmp_path)
    assert paths[1].read_text() == "mine"
    assert not paths[0].exists()


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UnknownTask, match=r"did you mean reverse\? There are: reverse, copy"):
        find("revers")


def test_the_rewards_of_the_starters_are_at_most_one():
    import importlib.util

    spec = importlib.util.spec_from_file_location("reward", SAMPLES / "reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert sum(module.score("1234", "1234", 0.25).values()) == 1
    assert sum(module.score("9", "1234", 0.25).values()) == 0
    assert share_of_right_positions("1234", "1234") == 1


@pytest.mark.parametrize(("task", "said", "reward"), [("function", ["{a}"], 1), ("tools", ["{p}", "{a}"], 1)])
async def test_the_code_beside_a_starter_judges_its_prompts(task, said, reward, tmp_path):
    starter = find(task)
    write(starter, tmp_path)
    spec = job_of(starter).spec
    (prompt,) = await training_prompts(spec.data).fetch([PromptRef(0, 0)])
    environment = build_environment(spec, folder=tmp_path)
    turns, total = (), 0.0
    try:
        for text_ in said:
            completion = text_.format(a=prompt.answer, p=prompt.text.removesuffix("="))
            turns = (*turns, Turn("assistant", completion))
            step = await environment.step(Episode("e", prompt, turns))
            turns = (*turns, Turn("user", step.observation or ""))
            total += step.reward
    finally:
        await environment.close()

    assert total == pytest.approx(reward)
    assert step.terminated
    if task == "tools":
        assert turns[1].text == f"={prompt.answer}="
