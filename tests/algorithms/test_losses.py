import math
from dataclasses import replace

import pytest
import torch
from algorithms.build import KL, LOSS, policy_batch, take
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.errors import ColumnsMismatch, TotalsMissing
from asyncrl_runtime.algorithms.losses import POLICY_METRICS, count_totals, policy_loss, policy_metrics
from asyncrl_runtime.algorithms.metrics import Normalizer, Totals, normalizer

NEVER = float("-inf")


def totals_of(batch):
    return count_totals(batch.token_mask, batch.sample_mask, batch.raw_rewards)


def step(batch, loss, parts=None):
    """Loss, gradient and metrics of one optimizer step that is split into parts."""
    totals = totals_of(batch)
    divisor = normalizer(totals, token_level=loss.token_level)
    batch.logprobs.grad = None
    stats, value = [], 0.0
    for picked in parts or [list(range(len(batch.sample_mask)))]:
        sums = policy_loss(take(batch, picked), loss, totals=totals)
        sums.loss.backward()
        value += float(sums.loss.detach())
        stats.append(sums.stats())
    return value / divisor, batch.logprobs.grad / divisor, policy_metrics(stats)


@pytest.mark.parametrize(("token_level", "expected"), [(True, 1.25), (False, 1.5)])
@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [1]], [[1], [0]]])
def test_ex_11_14_reduction_in_any_chunking(token_level, expected, parts):
    batch = policy_batch([[-1.0], [-1.0] * 3], advantages=[[-2.0], [-1.0] * 3])
    loss, _, metrics = step(batch, replace(LOSS, token_level=token_level), parts)
    assert loss == pytest.approx(expected)
    assert metrics["loss"] == pytest.approx(expected)


@pytest.mark.parametrize(("token_level", "raw"), [(True, 5 + 0.8), (False, 3 + 0.4)])
def test_ex_11_14_the_likelihood_term_enters_the_raw_sum_multiplied(token_level, raw):
    batch = policy_batch(
        [[-1.0], [-1.0, -2.0, -3.0]],
        advantages=[[-2.0], [-1.0] * 3],
        raw_rewards=torch.tensor([0.0, 1.0]),
    )
    loss = replace(LOSS, token_level=token_level, nll_weight=0.1)
    totals = totals_of(batch)
    assert totals == Totals(valid_tokens=4, valid_rows=2, positive_tokens=3)
    assert float(policy_loss(batch, loss, totals=totals).loss.detach()) == pytest.approx(raw)
    whole, _, _ = step(batch, loss)
    split, _, _ = step(batch, loss, [[0], [1]])
    assert whole == pytest.approx((1.25 if token_level else 1.5) + 0.2)
    assert split == pytest.approx(whole)


def test_sc_11_64_without_correct_rows_the_likelihood_term_is_0():
    batch = policy_batch([[-1.0]], raw_rewards=torch.tensor([0.0]))
    assert step(batch, replace(LOSS, nll_weight=0.5))[0] == step(batch, LOSS)[0]


def test_sc_11_64_the_likelihood_term_asks_for_what_it_needs():
    batch = policy_batch([[-1.0]])
    loss = replace(LOSS, nll_weight=0.5)
    with pytest.raises(TotalsMissing):
        policy_loss(batch, loss)
    with pytest.raises(ColumnsMismatch, match="reward"):
        policy_loss(batch, loss, totals=Totals(1, 1, 1))


KL_LOSS = replace(LOSS, kl=KL)
CORRECTED = replace(
    LOSS, correction=True, truncation=s.Truncation(kind="icepop", lower=0.5, upper=2.0), dual_clip=3.0, kl=KL
)
SEQUENCE = replace(LOSS, ratio="sequence", token_level=False, correction=True, kl=KL)
EVERY = {
    "token": replace(KL_LOSS, nll_weight=0.1),
    "sequence_mean": replace(CORRECTED, token_level=False, nll_weight=0.1),
    "sequence_ratio": SEQUENCE,
    "forced": replace(CORRECTED, ratio="forced"),
    "disabled": replace(LOSS, ratio="disabled", correction=True),
    "cispo": replace(LOSS, cispo=True, correction=True),
    "seq_mask": replace(
        LOSS, correction=True, truncation=s.Truncation(kind="seq-mask-tis", lower=0.8, upper=1.25)
    ),
    "on_policy_kl": replace(KL_LOSS, on_policy_kl=True),
}


def random_batch(seed, lengths, mask=None):
    generator = torch.Generator().manual_seed(seed)

    def column(low, high):
        return [
            (torch.rand(n, generator=generator, dtype=torch.float64) * (high - low) + low).tolist()
            for n in lengths
        ]

    batch = policy_batch(
        column(-3, -0.1),
        generation=column(-3, -0.1),
        previous=column(-3, -0.1),
        advantages=column(-2, 2),
        reference=column(-3, -0.1),
        raw_rewards=torch.randint(0, 2, (len(lengths),), generator=generator).double(),
    )
    return batch if mask is None else replace(batch, sample_mask=torch.tensor(mask, dtype=torch.float64))


def assert_same(first, second):
    assert second[0] == pytest.approx(first[0], abs=1e-9)
    torch.testing.assert_close(second[1], first[1], atol=1e-9, rtol=1e-9)
    assert second[2] == pytest.approx(first[2], abs=1e-9)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_sc_14_115_micro_batches_chunks_and_ranks_are_invisible(name, data):
    rows = data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=rows, max_size=rows))
    mask = data.draw(st.lists(st.sampled_from([0, 1]), min_size=rows, max_size=rows).filter(any))
    batch = random_batch(data.draw(st.integers(0, 99)), lengths, mask)
    order = data.draw(st.permutations(range(rows)))
    cuts = sorted(data.draw(st.sets(st.integers(1, rows), max_size=3)) | {rows})
    parts = [list(order[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    assert_same(step(batch, EVERY[name]), step(batch, EVERY[name], parts))


@pytest.mark.parametrize("name", EVERY)
def test_b12_single_precision_chunks_give_the_same_gradient(name):
    batch = random_batch(3, [5, 1, 4, 2, 3, 5, 2, 1])
    single = replace(
        batch,
        **{
            field: getattr(batch, field).detach().float()
            for field in batch.__slots__
            if getattr(batch, field) is not None
        },
    )
    single.logprobs.requires_grad_()
    whole = step(single, EVERY[name])
    split = step(single, EVERY[name], [[0, 1], [2], [3, 4, 5], [6, 7]])
    assert split[0] == pytest.approx(whole[0], abs=1e-6)
    torch.testing.assert_close(split[1], whole[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", EVERY)
def test_sc_10_42_padding_rows_and_positions_change_nothing(name):
    batch = random_batch(5, [3, 2, 4])
    garbage = {"logprobs": float("nan"), "token_mask": 1.0, "sample_mask": 0.0, "raw_rewards": 1.0}

    def grown(field):
        value = getattr(batch, field).detach()
        if value.dim() == 1:
            return torch.cat([value, value.new_full((2,), garbage[field])])
        wide = torch.cat([value, value.new_full((3, 2), 0.0 if field == "token_mask" else 7.0)], dim=1)
        return torch.cat([wide, wide.new_full((2, wide.shape[1]), garbage.get(field, float("nan")))])

    fields = [f for f in batch.__slots__ if getattr(batch, f) is not None]
    padded = replace(batch, **{field: grown(field) for field in fields})
    padded.logprobs.requires_grad_()
    loss, grad, metrics = step(batch, EVERY[name])
    padded_loss, padded_grad, padded_metrics = step(padded, EVERY[name])
    assert padded_loss == pytest.approx(loss)
    torch.testing.assert_close(padded_grad[:3, :5], grad)
    assert not padded_grad[3:].any()
    assert not padded_grad[:, 5:].any()
    assert padded_metrics["masked_token_fraction"] > metrics["masked_token_fraction"] == 0
    del padded_metrics["masked_token_fraction"], metrics["masked_token_fraction"]
    assert padded_metrics == pytest.approx(metrics)


@pytest.mark.parametrize("name", EVERY)
def test_sc_11_70_a_filtered_token_takes_no_part_but_stays_in_the_count(name):
    loss = replace(EVERY[name], nll_weight=0.1)
    batch = random_batch(8, [3, 2])
    lp = batch.logprobs.detach().clone()
    lp[0, 2] = NEVER
    previous = batch.previous_logprobs.clone()
    previous[1, 1] = NEVER
    if loss.ratio == "forced":
        lp[1, 1] = NEVER
    filtered = replace(
        batch, logprobs=lp.requires_grad_(), previous_logprobs=previous, raw_rewards=torch.ones(2).double()
    )
    value, grad, metrics = step(filtered, loss)
    assert value == value
    assert torch.isfinite(grad).all()
    assert grad[0, 2] == grad[1, 1] == 0
    assert metrics["nonfinite_logprob_tokens"] == 2
    assert metrics["global_valid_toks"] == 5
    assert all(v == v and abs(v) != float("inf") for v in metrics.values())


def test_sc_11_70_a_filtered_token_counts_0_in_the_mean_of_its_row():
    batch = policy_batch([[-1.0, NEVER]], previous=[[-2.0, -1.0]], generation=[[-1.0, -1.0]])
    loss = replace(LOSS, ratio="sequence", token_level=False, clip_max=9.0)
    value, _, _ = step(batch, loss)
    assert value == pytest.approx(-torch.tensor(0.5).exp().item() / 2)


def test_sc_11_64_a_filtered_token_has_no_likelihood_term():
    batch = policy_batch([[-3.0, NEVER]], advantages=[[0.0, 0.0]], raw_rewards=torch.tensor([1.0]))
    assert step(batch, replace(LOSS, nll_weight=1.0))[0] == pytest.approx(1.5)


def test_sc_14_119_and_14_132_masked_rows_reach_no_extreme():
    batch = policy_batch([[-1.0], [-1.0]], previous=[[-1.1], [-9.0]], sample_mask=torch.tensor([1.0, 0.0]))
    _, _, metrics = step(batch, LOSS)
    assert metrics["probs_ratio_min"] == metrics["probs_ratio_max"] == pytest.approx(1.10517)
    nothing = policy_loss(replace(batch, sample_mask=torch.zeros(2)), LOSS)
    assert float(nothing.loss.detach()) == 0
    empty = policy_metrics([nothing.stats()])
    assert empty["probs_ratio_min"] == empty["probs_ratio_max"] == -1


def test_a_batch_without_positions_is_harmless():
    batch = policy_batch([[], []])
    metrics = policy_metrics([policy_loss(batch, LOSS).stats()])
    assert metrics["global_valid_toks"] == metrics["global_valid_seqs"] == 0


@pytest.mark.parametrize("name", EVERY)
def test_sc_11_69_every_metric_declares_its_normaliser(name):
    stats = policy_loss(random_batch(1, [2, 3]), EVERY[name], totals=Totals(5, 2, 1)).stats()
    level = Normalizer.TOKENS if EVERY[name].token_level else Normalizer.SEQUENCES
    declared = {"loss": level, **POLICY_METRICS}
    if EVERY[name].kl is None:
        del declared["kl_penalty"]
    assert {metric: stat.normalizer for metric, stat in stats.items()} == declared


def test_sc_14_133_the_ratio_is_exactly_1_in_the_first_update():
    batch = policy_batch([[-0.3, -2.7], [-1.1]])
    _, _, metrics = step(batch, LOSS)
    for name in ("probs_ratio", "probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped"):
        assert metrics[name] == 1


def test_sc_12_11_ratios_and_what_was_clamped():
    batch = policy_batch(
        torch.tensor([[0.2, 0.05, 0.1]]).log().tolist(), previous=torch.tensor([[0.1] * 3]).log().tolist()
    )
    for ratio in ("token", "disabled"):
        _, _, metrics = step(batch, replace(LOSS, ratio=ratio))
        assert metrics["probs_ratio"] == pytest.approx(3.5 / 3)
        assert metrics["probs_ratio_min"] == pytest.approx(0.5)
        assert metrics["probs_ratio_max"] == pytest.approx(2)
    _, _, metrics = step(batch, LOSS)
    assert metrics["probs_ratio_clamped"] == pytest.approx(1)
    assert metrics["probs_ratio_clamped_min"] == pytest.approx(0.8)
    assert metrics["probs_ratio_clamped_max"] == pytest.approx(1.2)
    assert metrics["clip_fraction"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("ratio", "share"), [("token", 1 / 2), ("sequence", 3 / 4), ("forced", 0.0)])
def test_the_share_of_clipped_tokens_counts_valid_ones_only(ratio, share):
    logprobs = torch.tensor([[0.4, 0.1, 0.15], [0.1, 0.1, 0.1], [0.9, 0.9, 0.9]]).log().tolist()
    batch = policy_batch(
        [logprobs[0], logprobs[1][:1], logprobs[2]],
        previous=[[math.log(0.1)] * 3, [math.log(0.1)], [math.log(0.1)] * 3],
        sample_mask=torch.tensor([1.0, 1.0, 0.0]),
    )
    level = {"token_level": False} if ratio == "sequence" else {}
    _, _, metrics = step(batch, replace(LOSS, ratio=ratio, **level))

    assert metrics["clip_fraction"] == pytest.approx(share)


def test_sc_12_12_mismatch_of_generation_and_training():
    p, g = torch.tensor([0.4, 0.1]).double(), torch.tensor([0.2, 0.1]).double()
    batch = policy_batch([p.log().tolist()], generation=[g.log().tolist()])
    truncation = s.Truncation(kind="tis", lower=None, upper=1.5)
    _, _, metrics = step(batch, replace(LOSS, correction=True, truncation=truncation))
    ln2 = torch.tensor(2.0).double().log().item()
    mixture = torch.tensor(0.3).double()
    js = sum((x / mixture - 1 - (x / mixture).log()).item() for x in (p[0], g[0])) / 2
    assert metrics["token_mult_prob_error"] == pytest.approx(1.5)
    assert metrics["gen_kl_error"] == pytest.approx((1 - ln2) / 2)
    assert metrics["policy_kl_error"] == pytest.approx((ln2 - 0.5) / 2)
    assert metrics["js_divergence_error"] == pytest.approx(js / 2)
    assert metrics["sampling_importance_ratio"] == pytest.approx(1.5)
    assert metrics["effective_sample_size"] == pytest.approx(1.5**2 / 2.5)
    assert metrics["is_oob_ratio"] == 0.5
    assert metrics["approx_entropy"] == pytest.approx(-(2 * p[0].log() + p[1].log()).item() / 2)


def test_a_weight_that_overflows_counts_0():
    batch = policy_batch([[-1.0, -1.0]], generation=[[-2000.0, -1.0]])
    _, _, metrics = step(batch, replace(LOSS, correction=True))
    assert metrics["sampling_importance_ratio"] == 0.5
    assert metrics["effective_sample_size"] == 0.5


def test_without_mismatch_every_error_is_0():
    _, _, metrics = step(policy_batch([[-1.0, -2.0]]), LOSS)
    assert metrics["token_mult_prob_error"] == metrics["effective_sample_size"] == 1
    assert metrics["gen_kl_error"] == metrics["policy_kl_error"] == 0
    assert metrics["js_divergence_error"] == pytest.approx(0, abs=1e-12)


def test_kl_is_reported_without_its_weight_and_even_without_a_penalty():
    batch = policy_batch([[-1.0]], reference=[[-1.5]])
    for penalty in (0.0, 0.3):
        value, _, metrics = step(batch, replace(LOSS, kl=replace(KL, penalty=penalty)))
        assert metrics["kl_penalty"] == pytest.approx(0.10653, abs=5e-5)
        assert value == pytest.approx(-1 + penalty * 0.10653, abs=5e-5)
    _, _, metrics = step(policy_batch([[-1.0]]), replace(LOSS, kl=replace(KL, penalty=0.0)))
    assert "kl_penalty" not in metrics


def test_the_masked_share_counts_generated_tokens():
    batch = policy_batch([[-1.0] * 3, [-1.0]], sample_mask=torch.tensor([0.0, 1.0]))
    _, _, metrics = step(batch, LOSS)
    assert metrics["masked_token_fraction"] == 0.75
    assert metrics["global_valid_seqs"] == 1


def test_correction_removes_the_bias_of_stale_data():
    # two actions; data come from the older policy g, the gradient should be that under p
    g, p = torch.tensor([0.8, 0.2]).double(), torch.tensor([0.3, 0.7]).double()
    reward = torch.tensor([1.0, -1.0]).double()
    batch = policy_batch(
        [[x] for x in p.log().tolist()],
        generation=[[x] for x in g.log().tolist()],
        advantages=[[x] for x in reward.tolist()],
    )
    sums = policy_loss(replace(batch, sample_mask=g), replace(LOSS, correction=True))
    assert float(sums.loss.detach()) == pytest.approx(-(p * reward).sum().item())


def test_gradient_of_the_loss_matches_finite_differences():
    batch = random_batch(11, [3, 2])
    loss = replace(
        KL_LOSS, kl=replace(KL, kind="k2"), on_policy_kl=True, correction=True, clip_max=9.0, clip_min=1.0
    )

    def value(logprobs):
        return policy_loss(replace(batch, logprobs=logprobs), loss).loss

    assert torch.autograd.gradcheck(value, (batch.logprobs,))
