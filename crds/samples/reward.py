"""A reward of two parts: digits in their right places, and a right length."""


def score(completion: str, answer: str, length_bonus: float) -> dict[str, float]:
    """Named parts of the reward; their sum is the reward."""
    right = sum(given == wanted for given, wanted in zip(completion, answer, strict=False))
    return {
        "digits": right / len(answer) * (1 - length_bonus),
        "length": length_bonus * (len(completion) == len(answer)),
    }
