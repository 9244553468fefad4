"""What a prompt that is given up does to its step."""

import json

import pytest
from support.groups import put_slot

from asyncrl_runtime.core.drops import DropPolicy, StepAccounts, drop
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.core.replay import ReplayBuffer

REPLACE = DropPolicy(replaces=True)


def give_up(*, target, spares=1, policy=REPLACE, version=0, gated=True, used=0):
    """One admitted prompt is dropped; a ready group of step 9 could be borrowed."""
    ledger, buffer, accounts = PromptLedger(), ReplayBuffer(8), StepAccounts()
    (entry,) = ledger.own([PromptRef(0, 0)])
    ledger.admit([entry], target)
    entry.replacements = used
    ledger.divert([PromptRef(1, n) for n in range(spares)])
    put_slot(buffer, "lender", target=9)
    spare = drop(
        entry,
        ledger=ledger,
        buffer=buffer,
        accounts=accounts,
        policy=policy,
        trainer_version=version,
        gated=gated,
    )
    return spare, accounts, ledger, next(iter(buffer)).target_step


def test_sc_14_1_a_drop_ends_in_a_replacement_or_in_a_shortfall_and_never_in_both():
    spare, accounts, *_ = give_up(target=3)
    assert (spare.target_step, accounts.shortfall.total(), accounts.promoted) == (9, 0, {3: 1})
    for without in ({"spares": 0}, {"policy": DropPolicy()}, {"used": 1}):
        spare, accounts, ledger, _ = give_up(target=3, **without)
        assert (spare, accounts.shortfall, ledger.owed) == (None, {3: 1}, [])


@pytest.mark.parametrize("gated", [True, False])
def test_sc_14_2_a_drop_without_a_stamp_shrinks_no_step(gated):
    spare, accounts, ledger, lender = give_up(target=None, gated=gated)
    assert (spare, lender) == (None, 9)
    assert accounts.to_json() == StepAccounts().to_json()
    assert ledger.owed == ([None] if gated else [])


@pytest.mark.parametrize("without", [{"spares": 0}, {"policy": DropPolicy()}, {"used": 1}])
def test_sc_14_8_nothing_is_borrowed_without_a_spare_to_repay_it(without):
    _, accounts, _, lender = give_up(target=3, **without)
    assert (lender, accounts.promoted.total()) == (9, 0)


@pytest.mark.parametrize(("target", "borrows"), [(3, False), (4, True), (5, True), (9, False)])
def test_sc_14_9_nothing_is_borrowed_for_a_step_that_is_over_or_from_the_step_itself(target, borrows):
    spare, accounts, _, lender = give_up(target=target, version=4)
    assert (accounts.promoted == {target: 1}) is borrows
    assert (spare.target_step, lender) == ((9, target) if borrows else (target, 9))


def test_sc_14_7_a_closed_step_takes_earlier_accounts_with_it_and_leaves_later_ones():
    accounts = StepAccounts()
    for counts in (accounts.shortfall, accounts.unserved, accounts.replaced, accounts.promoted):
        counts.update({2: 1, 3: 2, 4: 1, 7: 1})
    accounts.close(3)
    kept = {"4": 1, "7": 1}
    assert accounts.to_json() == dict.fromkeys(("shortfall", "unserved", "replaced", "promoted"), kept)


def test_sc_14_178_accounts_of_steps_that_are_not_closed_survive_a_checkpoint():
    accounts, held = StepAccounts(), StepAccounts()
    accounts.credit_unserved(5)
    accounts.shortfall[6] += 2
    accounts.replaced[5] += 1
    held.adopt(StepAccounts.from_json(json.loads(json.dumps(accounts.to_json()))))
    assert (held.target_groups(5, 4), held.target_groups(6, 4), held.target_groups(7, 4)) == (3, 2, 4)
    assert (held.unserved, held.replaced) == ({5: 1}, {5: 1})
