"""The reward of stormy.yaml, in processes of its own that can be killed and frozen."""


def score(completion: str, answer: str) -> float:
    """Share of digits in their right places."""
    return sum(given == wanted for given, wanted in zip(completion, answer, strict=False)) / len(answer)
