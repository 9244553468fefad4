"""The two classes of failures (section 8.3)."""

from itertools import pairwise

import pytest

from asyncrl_runtime.core.errors import (
    DataFailure,
    DeadlinePassed,
    EnvironmentFailure,
    InfraFailure,
    WorkerDied,
)
from asyncrl_runtime.core.failures import backoff_seconds, is_infra


class HttpError(ConnectionError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


def chain(*errors):
    """Each error explicitly caused by the next."""
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    "error",
    [
        InfraFailure("lost"),
        WorkerDied("shard 0", -9),
        DeadlinePassed("generation", 5.0, "x"),
        TimeoutError(),
        ConnectionResetError(),
        MemoryError(),
        EOFError(),
        *(HttpError(status) for status in (500, 502, 503, 599, 408, 409, 429)),
    ],
)
def test_sc_8_20_sc_14_44_what_the_machinery_did(error):
    assert is_infra(error)
    assert is_infra(chain(RuntimeError("wrapped"), ValueError("again"), error))


@pytest.mark.parametrize(
    "error",
    [
        DataFailure("bad"),
        EnvironmentFailure("e", "f", "p", "x"),
        ValueError("unknown"),
        RuntimeError("unknown"),
        OSError("unknown"),
        *(HttpError(status) for status in (400, 401, 404, 422, 200)),
    ],
)
def test_sc_14_40_everything_else_is_the_data_s_fault(error):
    assert not is_infra(error)


def test_sc_8_20_the_router_may_have_a_status_of_its_own():
    assert not is_infra(HttpError(424))
    assert is_infra(HttpError(424), router_status=424)


def test_sc_8_21_sc_14_40_an_explicit_data_failure_wins_over_its_causes():
    assert not is_infra(chain(DataFailure("bad"), ConnectionError(), InfraFailure()))
    assert not is_infra(chain(RuntimeError(), DataFailure("bad"), InfraFailure()))


def test_sc_8_21_sc_14_40_implicit_context_is_not_followed():
    with pytest.raises(ValueError, match="while handling") as caught:
        try:
            raise ConnectionError
        except ConnectionError:
            raise ValueError("while handling")  # noqa: B904 - the context is the point
    assert isinstance(caught.value.__context__, ConnectionError)
    assert not is_infra(caught.value)


def test_sc_8_21_sc_14_40_a_cycle_of_causes_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_infra(first)


def test_sc_8_21_the_chain_is_followed_so_far_and_no_further():
    assert is_infra(chain(*(ValueError() for _ in range(7)), ConnectionError()))
    assert not is_infra(chain(*(ValueError() for _ in range(30)), ConnectionError()))


def test_ex_8_1_backoff_doubles_up_to_its_cap():
    waits = [backoff_seconds(n, base_seconds=1, max_seconds=30) for n in range(1, 7)]
    assert waits == [1, 2, 4, 8, 16, 30]
    assert backoff_seconds(100_000, base_seconds=0.5, max_seconds=30) == 30
    assert backoff_seconds(5, base_seconds=0, max_seconds=30) == 0
