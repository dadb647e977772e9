"""What a model can do, read from the model that was built: never from its name."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from reference_trainer.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """An empty reason says that the model can."""

    linear_attention: bool
    """Some layers carry a recurrent state along the sequence."""
    sliding_window: int | None
    """Positions that windowed layers look back at; None without such layers."""
    tied_head: bool
    """The language-model head is the embedding matrix."""
    max_positions: int
    """Longest sequence, prompt and response together."""
    why_not_packed: str
    """Why two samples can't share a row with positions that start again."""
    why_left_padding_differs: str
    """Why left padding moves log-probs by more than rounding."""


def read_capabilities(model: PreTrainedModel) -> Capabilities:
    """Look at the layer types and the weights."""
    layer_types = set(getattr(model.config, "layer_types", None) or [])
    linear = "linear_attention" in layer_types
    return Capabilities(
        linear_attention=linear,
        sliding_window=model.config.sliding_window if "sliding_attention" in layer_types else None,
        tied_head=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        max_positions=model.config.max_position_embeddings,
        why_not_packed=("its linear-attention state runs on from one sample of a row into the next" if linear else ""),
        why_left_padding_differs=(
            "it moves the chunks in which the linear-attention state is computed, in float32" if linear else ""
        ),
    )


def require_packable(model: PreTrainedModel) -> None:
    """Raise ConfigError with the reason when samples can't be packed into one row."""
    reason = read_capabilities(model).why_not_packed
    if reason:
        raise ConfigError(f"{type(model).__name__} can't train on packed samples: {reason}; use one sample a row")
