from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from reference_trainer.config import ConfigError, TrainerConfig, load_config
from tests.reference_trainer.tiny import settings

# What is wrong, and what the sentence must say: the key path, the value, the remedy.
BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"algorithm": {"advantage": "grop"}}, ('"algorithm.advantage"', '"grop"', 'did you mean "grpo"?')),
    ({"algorithm": {"advntage": "grpo"}}, ('unknown key "algorithm.advntage"', "'grpo'", 'did you mean "advantage"?')),
    ({"optimzer": {"lr": 1.0}}, ('unknown key "optimzer"', 'did you mean "optimizer"?')),
    ({"mode": "separate_async"}, ('"mode"', '"separate_async"', "known: sync")),
    ({"engine": "vllm"}, ('"engine"', '"vllm"', "known: native")),
    ({"model": {"architecture": "qwen4"}}, ('"model.architecture"', '"qwen4"', '"qwen3"')),
    ({"model": 3}, ('"model"', "3", "mapping")),
    ({"model": {"config": {}}}, ("model.config is empty", "model.checkpoint")),
    ({"model": {"checkpoint": "weights"}}, ("model.config", "model.checkpoint", "both")),
    ({"algorithm": {"clip_low": 1.5}}, ('"algorithm.clip_low"', "1.5", "less than or equal to 1")),
    ({"algorithm": {"std_ddof": 2}}, ('"algorithm.std_ddof"', "2", "known: 0, 1")),
    ({"algorithm": {"aggregation": "token-mean"}}, ('"algorithm.aggregation"', 'did you mean "token_mean"?')),
    ({"algorithm": {"whiten": "no"}}, ('"algorithm.whiten"', '"no"', "boolean")),
    ({"steps": True}, ('"steps"', "True", "integer")),
    ({"steps": 0}, ('"steps"', "0", "greater than or equal to 1")),
    ({"seed": 1.5}, ('"seed"', "1.5", "integer")),
    ({"seed": -1}, ('"seed"', "-1")),
    ({"dp": 0}, ('"dp"', "0")),
    ({"optimizer": {"lr": True}}, ('"optimizer.lr"', "True", "not a boolean")),
    ({"optimizer": {"lr": float("nan")}}, ('"optimizer.lr"', "nan", "finite")),
    ({"optimizer": {"lr": "fast"}}, ('"optimizer.lr"', '"fast"', "number")),
    ({"optimizer": {"betas": [0.9]}}, ('"optimizer.betas"', "[0.9]", "more items")),
    ({"optimizer": {"betas": [0.9, 0.9, 0.9]}}, ('"optimizer.betas"', "fewer items")),
    ({"optimizer": {"betas": [0.9, 1]}}, ('"optimizer.betas.1"', "1", "less than 1")),
    ({"rollout": {"temperature": 0}}, ('"rollout.temperature"', "0", "greater than 0")),
    ({"rollout": {"top_p": 1.1}}, ('"rollout.top_p"', "1.1")),
    ({3: "x"}, ("key 3", "text")),
    ({"algorithm": {"kl": "k1", "kl_coefficient": 0.1, "kl_placement": "reward"}}, ("kl_placement", '"grpo"')),
    ({"algorithm": {"advantage": "none"}}, ("algorithm.advantage", '"none"', "policy_loss")),
    ({"algorithm": {"advantage": "none", "policy_loss": "none"}}, ("policy_loss", "distillation")),
    ({"algorithm": {"policy_loss": "gspo", "dual_clip": 3.0}}, ("dual_clip", '"gspo"')),
    ({"algorithm": {"correction_cap": 4.0}}, ("correction_cap", 'correction "none"')),
    ({"algorithm": {"correction": "token_truncate", "correction_floor": 0.5}}, ("correction_floor", "0.5", "mask")),
    ({"algorithm": {"overlong": {"length": 4}}}, ("algorithm.overlong.length 4", "max_tokens 3")),
    ({"algorithm": {"overlong": {}}}, ("algorithm.overlong.length 0", "at least 1")),
    ({"rollout": {"draft_tokens": 2}}, ("rollout.draft_tokens 2", "model.drafter")),
    ({"algorithm": {"kl": "k3"}}, ("algorithm.kl", '"k3"', "kl_coefficient 0")),
    ({"algorithm": {"kl_coefficient": 0.1}}, ("algorithm.kl_coefficient", "0.1", 'kl "none"')),
    ({"batch": {"micro_batch": 8}}, ("batch.micro_batch 8", "batch.mini_batch 4")),
    ({"batch": {"mini_batch": 3, "micro_batch": 1}}, ("batch.mini_batch 3", "8 rows")),
    ({"optimizer": {"warmup_steps": 99}}, ("optimizer.warmup_steps 99", "4 updates")),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[str(change)[:60] for change, _ in BAD])
def test_a_wrong_configuration_is_told_in_one_sentence(change: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings(**change) if all(isinstance(key, str) for key in change) else {**settings(), **change})
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message


@pytest.mark.parametrize("key", ["model", "algorithm"])
def test_a_missing_section_is_named(key: str) -> None:
    mapping = settings()
    del mapping[key]
    with pytest.raises(ConfigError, match=f'"{key}" is missing'):
        load_config(mapping)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="should be a mapping"):
        load_config(["model"])  # type: ignore[arg-type]


def test_a_null_is_as_good_as_an_absent_key() -> None:
    nulls = settings(optimizer={"lr": None}, task={"dataset": None}, mode=None, dp=None)
    assert load_config(nulls) == load_config(settings())


def test_null_turns_value_clipping_off() -> None:
    assert load_config(settings(algorithm={"value_clip": None})).algorithm.value_clip is None


def test_a_null_inside_free_form_keywords_is_kept() -> None:
    kept = load_config(settings(model={"config": {"sliding_window": None}})).model.config
    assert kept == {"sliding_window": None}


def test_yaml_writes_small_numbers_as_text() -> None:
    assert load_config(settings(optimizer={"lr": "5e-4"})).optimizer.lr == 5e-4


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_config(settings()).steps = 3  # type: ignore[misc]


def test_every_field_has_one_line_of_documentation() -> None:
    def undocumented(section: type[BaseModel], path: str = "") -> list[str]:
        found = []
        for name, field in section.model_fields.items():
            if not field.description or "\n" in field.description:
                found.append(path + name)
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                found += undocumented(field.annotation, f"{path}{name}.")
        return found

    assert undocumented(TrainerConfig) == []


def test_a_disabled_overlong_section_is_as_good_as_none() -> None:
    anything = {"enabled": False, "length": 10**6}
    assert not load_config(settings(algorithm={"overlong": anything})).algorithm.penalises_overlong


def test_importing_the_configuration_does_not_import_torch() -> None:
    code = "import sys, reference_trainer.config; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
