"""TRL's GRPOTrainer on weights and prompts of a folder, a JSON line per step. Run by time_to_reward.py."""

import argparse
import json
import sys
from pathlib import Path


def settings(asked):
    """The configuration: defaults, but for what the task fixes and what would only cost time here."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(asked.folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=asked.prompts * asked.generations,
        steps_per_generation=asked.steps_per_generation,
        num_generations=asked.generations,
        max_completion_length=asked.new_tokens,
        max_steps=asked.steps,
        learning_rate=asked.lr,
        lr_scheduler_type="constant",
        weight_decay=asked.weight_decay,
        seed=asked.seed,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="model/ with its tokenizer, and prompts.jsonl")
    for name in ("prompts", "generations", "new_tokens", "steps", "seed", "threads", "steps_per_generation"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, required=True)
    for name in ("lr", "weight_decay"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, required=True)
    asked = parser.parse_args()

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    from asyncrl_runtime.adapters.environments.arithmetic import share_of_right_positions
    from asyncrl_runtime.adapters.tokenizers.character import DIGIT_SYMBOLS, CharacterTokenizer

    torch.set_num_threads(asked.threads)
    tokenizer = CharacterTokenizer(DIGIT_SYMBOLS)

    def reward(completion_ids, answer, **_):
        """What asyncrl's environment pays, from the very tokens."""
        texts = (tokenizer.decode(token_ids).strip() for token_ids in completion_ids)
        return [share_of_right_positions(text, right) for text, right in zip(texts, answer, strict=True)]

    class Lines(TrainerCallback):
        """Tells each step's mean reward as soon as it is known."""

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "reward" in logs:
                sys.__stdout__.write(
                    json.dumps({"step": state.global_step, "reward": float(logs["reward"])}) + "\n"
                )
                sys.__stdout__.flush()

    lines = (asked.folder / "prompts.jsonl").read_text().splitlines()
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(asked.folder / "model", dtype=torch.float32),
        reward_funcs=reward,
        args=settings(asked),
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        processing_class=AutoTokenizer.from_pretrained(asked.folder / "model"),
        callbacks=[Lines()],
    ).train()


if __name__ == "__main__":
    main()
