"""The metrics of a training step that reports look for, by their names in the records."""

from __future__ import annotations

TITLES = {
    "reward": "reward",
    "kl": "KL to the reference policy",
    "entropy": "entropy",
    "logprob_gap": "train–rollout log-prob gap",
    "sync_gap": "gap after weight sync",
    "clip_fraction": "clip fraction",
    "grad_norm": "gradient norm",
    "degenerate_groups": "degenerate groups",
    "staleness": "staleness",
    "timeouts": "time-outs of scorers",
    "drafts_proposed": "drafts proposed",
    "drafts_accepted": "drafts accepted",
    "tokens": "tokens",
    "live_bytes": "live bytes",
}
TABLE = ("reward", "kl", "entropy", "logprob_gap", "sync_gap", "clip_fraction", "grad_norm", "degenerate_groups")
PLOTS = ("reward", "kl", "entropy", "logprob_gap")

STEP_SECONDS = "step_seconds"
PHASE_SUFFIX = "_seconds"
LIVE_BYTES = "live_bytes"
